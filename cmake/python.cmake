# The module inrush._inrush and a command that needs no library of ours beside it: what pyproject.toml puts
# into the wheel. Configured by scikit-build-core, or by the preset `python` for clang-tidy.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
# Asked each time: an isolated build has nanobind in a folder that is gone at the next.
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE NANOBIND_FOLDER
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(nanobind_DIR ${NANOBIND_FOLDER} CACHE PATH "" FORCE)
find_package(nanobind CONFIG REQUIRED)

# libstdc++ is linked in, so that it matters to nobody which one a system or another library has. libgcc_s is
# not: every system has it, all libraries of a process then unwind by one, and the static one of g++ 12 needs
# glibc 2.35. older_glibc.cpp keeps other new names of glibc out, --gc-sections what libstdc++ has unused.
add_library(inrush_wheel INTERFACE)
target_sources(inrush_wheel INTERFACE ${CMAKE_CURRENT_LIST_DIR}/older_glibc.cpp)
target_link_options(inrush_wheel INTERFACE -static-libstdc++ -Wl,--exclude-libs,ALL -Wl,--gc-sections)

file(GLOB INRUSH_PYTHON_SOURCES CONFIGURE_DEPENDS src/python/*.cpp)
nanobind_add_module(_inrush STABLE_ABI NB_STATIC NB_DOMAIN inrush NB_SUPPRESS_WARNINGS
                    ${INRUSH_PYTHON_SOURCES})
# LINK_ONLY: the module sees the public headers alone.
target_include_directories(_inrush PRIVATE include)
target_link_libraries(_inrush PRIVATE $<LINK_ONLY:inrush_core> inrush_build inrush_wheel)
target_link_options(_inrush PRIVATE -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/python_exports.map)
set_target_properties(_inrush PROPERTIES LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/python_exports.map)
install(TARGETS _inrush LIBRARY DESTINATION inrush COMPONENT python)

target_link_libraries(inrush_command PRIVATE inrush_wheel)
target_link_libraries(inrush_probe PRIVATE inrush_wheel)
install(TARGETS inrush_probe RUNTIME DESTINATION inrush COMPONENT python)
if(SKBUILD)
  install(TARGETS inrush_command RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
endif()
