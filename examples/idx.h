// IDX files, the format of MNIST and its relatives, as they are or compressed with gzip.
//
//   2 bytes   0
//   1 byte    element type; 8: unsigned bytes, the only one read here
//   1 byte    rank
//   rank * 4  sizes, big-endian
//   data      the elements, row-major
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace idx {

struct Array {
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> values;
};

/// Throws zerone::FileError, which names the file, unless it holds unsigned bytes of that rank, as
/// many as its header says and nothing after them. Memory is taken for what is there, not for what
/// a header claims.
Array load(const std::string& path, int rank);

}  // namespace idx
