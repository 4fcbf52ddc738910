// What a first user of the installed library writes: makes a checkpoint of one tensor, finds it, prints it.
#include <inrush/loader.hpp>

#include <exception>
#include <fstream>
#include <iostream>
#include <string>

namespace {

void write_checkpoint(const std::string& path) {
  const std::string header = R"({"weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  std::ofstream file(path, std::ios::binary);
  for (unsigned i = 0; i < 8; ++i) file.put(static_cast<char>(header.size() >> (8 * i)));
  file << header << std::string(24, 'x');
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  write_checkpoint(argv[1]);
  const inrush::Checkpoint checkpoint = inrush::discover(argv[1]);
  const inrush::TensorInfo tensor = checkpoint.tensor(0);
  std::cout << "inrush " << inrush::version() << ": " << tensor.name << " "
            << inrush::dtype_name(tensor.dtype) << " " << tensor.size_bytes << " bytes\n";
  try {
    static_cast<void>(inrush::discover(std::string(argv[1]) + ".absent"));
  } catch (const inrush::Error& error) {  // caught by type across the library's border
    std::cout << inrush::error_code_name(error.code()) << "\n";
    return 0;
  }
  return 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
