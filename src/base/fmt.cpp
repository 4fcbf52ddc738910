// The one place where the non-template half of {fmt} is compiled: no library to link (Debian has only a
// shared one). Header-only, each file that formats compiled it again: 4 to 8 s of the 6 to 20 s that it took.
#ifndef FMT_HEADER_ONLY  // a version whose names are not known here, see CMakeLists.txt
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template locale_ref::locale_ref(const std::locale& locale);
template auto locale_ref::get<std::locale>() const -> std::locale;
template auto thousands_sep_impl(locale_ref locale) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref locale) -> char;
template void buffer<char>::append(const char* begin, const char* end);
template void vformat_to(buffer<char>& out, string_view format, basic_format_args<format_context> arguments,
                         locale_ref locale);

}  // namespace detail
FMT_END_NAMESPACE
#endif
