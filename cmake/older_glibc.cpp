// Linked into the wheel only. From glibc 2.38 on <cstdlib> compiles strtol and its siblings to new names,
// which older systems do not have; libstdc++.a of such a system asks for them too. The new functions differ
// in that they read 0b101, which nothing here relies on. Defining the names here binds all of them to the
// old.

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {

long inrush_strtol(const char* text, char** end, int base) __asm__("strtol");
unsigned long inrush_strtoul(const char* text, char** end, int base) __asm__("strtoul");
long long inrush_strtoll(const char* text, char** end, int base) __asm__("strtoll");
unsigned long long inrush_strtoull(const char* text, char** end, int base) __asm__("strtoull");

long __isoc23_strtol(const char* text, char** end, int base) { return inrush_strtol(text, end, base); }
unsigned long __isoc23_strtoul(const char* text, char** end, int base) {
  return inrush_strtoul(text, end, base);
}
long long __isoc23_strtoll(const char* text, char** end, int base) { return inrush_strtoll(text, end, base); }
unsigned long long __isoc23_strtoull(const char* text, char** end, int base) {
  return inrush_strtoull(text, end, base);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
