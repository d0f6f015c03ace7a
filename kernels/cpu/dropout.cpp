// A worker takes panels of 128 Philox blocks: it draws their flags, a byte a block, by a loop that
// the compiler vectorizes for the machine at hand, then multiplies each four elements by the four
// factors that a table holds for their byte. The gradient is the second half alone.
#include <zerone/kernels/cpu/dropout.h>

#include <algorithm>

#include <zerone/kernels/cpu/number.h>
#include <zerone/kernels/cpu/parallel.h>
#include <zerone/kernels/philox.h>

namespace zerone::kernels::cpu {
namespace {

constexpr std::int64_t panel_blocks = 128, panel_size = 4 * panel_blocks;

using DrawFlags = void (*)(const DropoutDraw&, std::uint64_t counter, int blocks,
                           std::uint8_t* flags);

ZERONE_HOST_DEVICE void draw_loop(const DropoutDraw& draw, std::uint64_t counter, int blocks,
                                  std::uint8_t* flags) {
  const std::uint64_t seed = draw.seed;
  const std::uint32_t highest = draw.highest_kept;
  for (int i = 0; i < blocks; ++i)
    flags[i] = philox::kept_of_four(seed, counter + static_cast<std::uint64_t>(i), highest);
}

void draw_baseline(const DropoutDraw& draw, std::uint64_t counter, int blocks,
                   std::uint8_t* flags) {
  draw_loop(draw, counter, blocks, flags);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void draw_avx2(const DropoutDraw& draw, std::uint64_t counter,
                                               int blocks, std::uint8_t* flags) {
  draw_loop(draw, counter, blocks, flags);
}

__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,prefer-vector-width=512"))) void
draw_avx512(const DropoutDraw& draw, std::uint64_t counter, int blocks, std::uint8_t* flags) {
  draw_loop(draw, counter, blocks, flags);
}
#endif

DrawFlags best_draw() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return draw_avx512;
  if (__builtin_cpu_supports("avx2")) return draw_avx2;
#endif
  return draw_baseline;
}

template <class T>
struct Factors {
  alignas(64) Compute<T> of[16][4];  // by byte, then element
  explicit Factors(double scale) {
    for (int byte = 0; byte < 16; ++byte)
      for (int k = 0; k < 4; ++k) of[byte][k] = (byte >> k & 1) != 0 ? Compute<T>(scale) : 0;
  }
};

template <class T>
void apply(const Factors<T>& factors, T* out, const T* x, std::int64_t n,
           const std::uint8_t* flags) {
  using C = Compute<T>;
  for (std::int64_t i = 0; i + 4 <= n; i += 4) {
    const C* const factor = factors.of[flags[i / 4]];
    C values[4];
    for (int k = 0; k < 4; ++k) values[k] = static_cast<C>(x[i + k]) * factor[k];
    for (int k = 0; k < 4; ++k) out[i + k] = static_cast<T>(values[k]);
  }
  for (std::int64_t i = n / 4 * 4; i < n; ++i)
    out[i] = static_cast<T>(static_cast<C>(x[i]) * factors.of[flags[i / 4]][i % 4]);
}

/// flags_of(panel) gives a panel's flags; panels are 512 elements but the last.
template <class FlagsOf>
void for_each_panel(const Dropout& args, int threads, const FlagsOf& flags_of) {
  with_float_type(args.dtype, [&]<class T>(T) {
    const Factors<T> factors(args.scale);
    T* const out = static_cast<T*>(args.out);
    const T* const x = static_cast<const T*>(args.x);
    const std::int64_t panels = (args.n + panel_size - 1) / panel_size;
    parallel_for(threads, panels, 16, [&](std::int64_t begin, std::int64_t end) {
      std::uint8_t buffer[panel_blocks];
      for (std::int64_t panel = begin; panel < end; ++panel) {
        const std::int64_t first = panel * panel_size;
        apply(factors, out + first, x + first, std::min(panel_size, args.n - first),
              flags_of(panel, buffer));
      }
    });
  });
}

}  // namespace

void dropout(const Dropout& args, const DropoutDraw& draw, std::uint64_t position,
             std::uint8_t* flags, int threads) {
  static const DrawFlags draw_flags = best_draw();
  for_each_panel(args, threads, [&](std::int64_t panel, std::uint8_t* buffer) {
    const std::int64_t first = panel * panel_blocks;
    const auto blocks = static_cast<int>(std::min(panel_blocks, (args.n + 3) / 4 - first));
    std::uint8_t* const target = flags ? flags + first : buffer;
    draw_flags(draw, position + static_cast<std::uint64_t>(first), blocks, target);
    return static_cast<const std::uint8_t*>(target);
  });
}

void dropout_backward(const Dropout& args, const std::uint8_t* flags, int threads) {
  for_each_panel(args, threads,
                 [&](std::int64_t panel, std::uint8_t*) { return flags + panel * panel_blocks; });
}

}  // namespace zerone::kernels::cpu
