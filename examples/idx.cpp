#include "idx.h"

#include <fmt/format.h>
#include <zlib.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <zerone/core/error.h>

namespace idx {
namespace {

class File {
 public:
  explicit File(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) fail(fmt::format("cannot be opened: {}", std::strerror(errno)));
    gzbuffer(file_.get(), 1 << 17);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw zerone::FileError(fmt::format("[idx] {}: {}", path_, what));
  }

  /// As many bytes as there are, at most `size`.
  std::size_t read(std::uint8_t* values, std::size_t size) {
    const int count = gzread(file_.get(), values, static_cast<unsigned>(size));
    int status = Z_OK;
    const char* const text = gzerror(file_.get(), &status);
    if (status == Z_BUF_ERROR) fail("its compressed data is cut short");
    if (count < 0) fail(status == Z_ERRNO ? std::strerror(errno) : text);
    return static_cast<std::size_t>(count);
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  const std::string& path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

}  // namespace

Array load(const std::string& path, int rank) {
  File file(path);
  std::array<std::uint8_t, 4> word;
  if (file.read(word.data(), 4) < 4 || word[0] != 0 || word[1] != 0) file.fail("is no IDX file");
  if (word[2] != 8)
    file.fail(fmt::format("holds elements of type {:#04x}; unsigned bytes are 0x08", word[2]));
  if (word[3] != rank) file.fail(fmt::format("has rank {}, expected {}", word[3], rank));

  Array array;
  std::size_t count = 1;
  for (int axis = 0; axis < rank; ++axis) {
    if (file.read(word.data(), 4) < 4) file.fail("its header is cut short");
    const std::size_t size = std::size_t{word[0]} << 24 | std::size_t{word[1]} << 16 |
                             std::size_t{word[2]} << 8 | std::size_t{word[3]};
    if (__builtin_mul_overflow(count, size, &count)) file.fail("its sizes overflow");
    array.sizes.push_back(static_cast<std::int64_t>(size));
  }
  constexpr std::size_t step = std::size_t{1} << 22;
  while (array.values.size() < count) {
    const std::size_t done = array.values.size();
    array.values.resize(std::min(count, done + step));
    if (file.read(array.values.data() + done, array.values.size() - done) <
        array.values.size() - done)
      file.fail(fmt::format("ends before the {} bytes that its sizes ({}) say", count,
                            fmt::join(array.sizes, " x ")));
  }
  if (file.read(word.data(), 1) != 0)
    file.fail(fmt::format("holds more than the {} bytes that its sizes ({}) say", count,
                          fmt::join(array.sizes, " x ")));
  return array;
}

}  // namespace idx
