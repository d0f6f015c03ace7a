#include <zerone/core/npy.h>

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include <zerone/core/error.h>

static_assert(std::endian::native == std::endian::little, "npy.cpp swaps big-endian files only");

namespace zerone {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t max_header = 64 << 10;

struct Header {
  char kind = 'f';       // f, i, u
  std::size_t item = 0;  // bytes
  bool big_endian = false;
  bool fortran = false;
  std::vector<std::int64_t> sizes;
};

class Parser {
 public:
  Parser(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  Header parse() {
    Header header;
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") {
        descr(quoted(), header);
        has_descr = true;
      } else if (key == "fortran_order") {
        header.fortran = boolean();
        has_order = true;
      } else if (key == "shape") {
        shape(header);
        has_shape = true;
      } else {
        fail(fmt::format("unknown header key '{}'", key));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!has_descr || !has_order || !has_shape) fail("incomplete header");
    skip_space();
    if (at_ < text_.size())
      fail(fmt::format("malformed header: text after its end at byte {}", at_));
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("[npy] {}: {}", path_, what));
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("malformed header: '{}' expected at byte {}", c, at_));
  }
  std::string quoted() {
    skip_space();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"'))
      fail("malformed header: a quoted string expected");
    const char quote = text_[at_++];
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) fail("malformed header: an unterminated string");
    std::string value(text_.substr(at_, end - at_));
    at_ = end + 1;
    return value;
  }
  bool boolean() {
    skip_space();
    for (const auto& [word, value] :
         {std::pair{std::string_view("True"), true}, std::pair{std::string_view("False"), false}})
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value;
      }
    fail("malformed header: True or False expected");
  }
  void descr(const std::string& descr, Header& header) const {
    const bool known = descr.size() == 3 && std::string_view("<>|=").find(descr[0]) != descr.npos;
    if (!known) fail(fmt::format("element type '{}' is not supported", descr));
    header.big_endian = descr[0] == '>';
    header.kind = descr[1];
    header.item = static_cast<std::size_t>(descr[2] - '0');
    const std::string type = descr.substr(1);
    constexpr std::string_view types[] = {"f8", "f4", "f2", "i8", "i4", "i2", "u1"};
    if (std::find(std::begin(types), std::end(types), type) == std::end(types))
      fail(fmt::format("element type '{}' is not supported", descr));
  }
  void shape(Header& header) {
    header.sizes.clear();  // of an earlier 'shape': Python takes the last one, too
    expect('(');
    while (!accept(')')) {
      skip_space();
      std::int64_t size = 0;
      std::size_t digits = 0;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_, ++digits)
        if (__builtin_mul_overflow(size, 10, &size) ||
            __builtin_add_overflow(size, text_[at_] - '0', &size))
          fail("a size in the shape is too large");
      if (digits == 0) fail("malformed shape");
      header.sizes.push_back(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    if (header.sizes.size() > max_rank)
      fail(fmt::format("rank {} is above the limit of {}", header.sizes.size(), max_rank));
  }

  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0;
};

DType dtype_of_header(const Header& header) {
  if (header.kind == 'u') return DType::u8;
  if (header.kind == 'i') return DType::i64;
  return header.item == 8 ? DType::f64 : header.item == 4 ? DType::f32 : DType::f16;
}

template <class Narrow>
void widen(std::vector<std::byte>& bytes, std::size_t count) {
  std::vector<std::byte> wide(count * sizeof(std::int64_t));
  for (std::size_t i = 0; i < count; ++i) {
    Narrow value;
    std::memcpy(&value, bytes.data() + i * sizeof(Narrow), sizeof(Narrow));
    const std::int64_t widened = value;
    std::memcpy(wide.data() + i * sizeof(widened), &widened, sizeof(widened));
  }
  bytes = std::move(wide);
}

}  // namespace

Tensor load_npy(const Context& context, const std::string& path) {
  const auto fail = [&path](const std::string& what) -> void {
    throw FileError(fmt::format("[npy] {}: {}", path, what));
  };
  std::error_code error;
  const std::uintmax_t file_bytes = std::filesystem::file_size(path, error);
  if (error) fail(error.message());
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot be opened");

  std::array<unsigned char, 8> start{};
  if (!file.read(reinterpret_cast<char*>(start.data()), start.size()) ||
      std::memcmp(start.data(), magic.data(), magic.size()) != 0)
    fail("not an .npy file");
  const int major = start[6];
  if (major < 1 || major > 3) fail(fmt::format("format version {} is not supported", major));
  std::array<unsigned char, 4> length{};
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  if (!file.read(reinterpret_cast<char*>(length.data()),
                 static_cast<std::streamsize>(length_bytes)))
    fail("the file ends inside the header");
  const std::size_t header_bytes =
      length[0] | length[1] << 8 | length[2] << 16 | static_cast<std::size_t>(length[3]) << 24;
  const std::size_t data_at = start.size() + length_bytes + header_bytes;
  if (header_bytes > max_header || data_at > file_bytes)
    fail(fmt::format("the header claims {} bytes; the file has {}", header_bytes, file_bytes));
  std::string text(header_bytes, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(header_bytes)))
    fail("the file ends inside the header");
  Header header = Parser(text, path).parse();

  // Checked as if no size were 0, so that a Shape can hold it.
  std::int64_t span = static_cast<std::int64_t>(sizeof(std::int64_t));
  std::size_t count = 1;
  for (const std::int64_t size : header.sizes) {
    if (__builtin_mul_overflow(span, std::max<std::int64_t>(size, 1), &span))
      fail("the shape's product is too large");
    count *= static_cast<std::size_t>(size);
  }
  const std::uintmax_t bytes = count * header.item;
  if (bytes > file_bytes - data_at)
    fail(fmt::format("the shape needs {} bytes of data; the file has {}", bytes,
                     file_bytes - data_at));
  std::vector<std::byte> data(bytes);
  if (bytes > 0 &&
      !file.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(bytes)))
    fail("the file ends inside the data");
  if (header.big_endian)
    for (std::size_t i = 0; i < count; ++i)
      std::reverse(data.begin() + static_cast<std::ptrdiff_t>(i * header.item),
                   data.begin() + static_cast<std::ptrdiff_t>((i + 1) * header.item));
  if (header.kind == 'i' && header.item == 4) widen<std::int32_t>(data, count);
  if (header.kind == 'i' && header.item == 2) widen<std::int16_t>(data, count);

  const DType dtype = dtype_of_header(header);
  if (header.fortran) std::reverse(header.sizes.begin(), header.sizes.end());
  const Shape shape{std::span<const std::int64_t>(header.sizes)};
  const Context host = context.device().is_cuda() ? Context(Device::cpu()) : context;
  Tensor tensor = Tensor::empty(host, shape, dtype);
  if (!data.empty()) std::memcpy(tensor.mutable_data(), data.data(), data.size());
  if (header.fortran) {
    std::array<int, max_rank> axes{};
    for (int i = 0; i < shape.rank(); ++i) axes[static_cast<std::size_t>(i)] = shape.rank() - 1 - i;
    tensor =
        tensor.permute(std::span<const int>(axes.data(), static_cast<std::size_t>(shape.rank())));
  }
  return tensor.to(context);
}

void save_npy(const Tensor& tensor, const std::string& path) {
  const char* descr = nullptr;
  switch (tensor.dtype()) {
    case DType::f64: descr = "<f8"; break;
    case DType::f32: descr = "<f4"; break;
    case DType::f16: descr = "<f2"; break;
    case DType::i64: descr = "<i8"; break;
    case DType::u8: descr = "|u1"; break;
    case DType::bf16: throw DTypeError("[npy] NumPy has no bf16 type; convert to f32 first");
  }
  const Shape shape = tensor.shape();
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr,
                  fmt::join(shape.begin(), shape.end(), ", "), shape.rank() == 1 ? "," : "");
  constexpr std::size_t preamble = 10;  // magic, version, length
  header.append(63 - (preamble + header.size()) % 64, ' ');
  header += '\n';

  const Context host = tensor.device().is_cuda() ? Context(Device::cpu()) : tensor.context();
  Tensor dense = tensor.to(host).contiguous();
  const std::string partial = fmt::format("{}.{}.partial", path, getpid());
  {
    std::ofstream file(partial, std::ios::binary | std::ios::trunc);
    file << magic << '\x01' << '\0' << static_cast<char>(header.size() & 0xff)
         << static_cast<char>(header.size() >> 8) << header;
    if (dense.numel() > 0)
      file.write(static_cast<const char*>(dense.data()),
                 static_cast<std::streamsize>(dense.bytes()));
    file.close();
    if (!file) {
      std::remove(partial.c_str());
      throw FileError(fmt::format("[npy] {}: cannot be written", path));
    }
  }
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  if (error) {
    std::remove(partial.c_str());
    throw FileError(fmt::format("[npy] {}: {}", path, error.message()));
  }
}

}  // namespace zerone
