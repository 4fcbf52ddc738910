// The one place where the non-template half of Boost.JSON is compiled: header-only use, no library to link.
#include <boost/json/src.hpp>
