// Philox fills. A worker generates a panel of whole Philox blocks into registers and a small
// buffer, by loops the compiler vectorizes for the machine at hand, then rounds and stores the part
// that was asked for.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-math-errno", "no-trapping-math")
#endif

#include <zerone/kernels/cpu/random.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include <zerone/kernels/cpu/parallel.h>
#include <zerone/kernels/philox.h>

namespace zerone::kernels::cpu {
namespace {

constexpr int panel_blocks = 128;

template <class T>
constexpr int values_per_block = sizeof(T) == 8 ? 2 : 4;

/// Fills `panel` with the values of blocks counter .. counter + panel_blocks - 1.
template <class T, bool Normal>
ZERONE_HOST_DEVICE void generate(std::uint64_t seed, std::uint64_t counter, T a, T b, T* panel) {
  constexpr int width = values_per_block<T>;
  for (int i = 0; i < panel_blocks; ++i) {
    T v[width];
    philox::values<Normal>(seed, counter + static_cast<std::uint64_t>(i), a, b, v);
    for (int k = 0; k < width; ++k) panel[i * width + k] = v[k];
  }
}

template <class T>
using Generator = void (*)(std::uint64_t, std::uint64_t, T, T, T*);

template <class T, bool Normal>
void generate_baseline(std::uint64_t seed, std::uint64_t counter, T a, T b, T* panel) {
  generate<T, Normal>(seed, counter, a, b, panel);
}

#if defined(__x86_64__)
template <class T, bool Normal>
__attribute__((target("avx2,fma"))) void generate_avx2(std::uint64_t seed, std::uint64_t counter,
                                                       T a, T b, T* panel) {
  generate<T, Normal>(seed, counter, a, b, panel);
}

template <class T, bool Normal>
__attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"))) void
generate_avx512(std::uint64_t seed, std::uint64_t counter, T a, T b, T* panel) {
  generate<T, Normal>(seed, counter, a, b, panel);
}
#endif

template <class T, bool Normal>
Generator<T> best_generator() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return generate_avx512<T, Normal>;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return generate_avx2<T, Normal>;
  }
#endif
  return generate_baseline<T, Normal>;
}

std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

std::uint16_t to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  std::uint32_t half;
  if (magnitude > 0x7F800000u) {
    half = 0x7E00u;
  } else if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
    half = 0x7C00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 rounds to multiples of 2^-24, the subnormal step.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

template <class T, class Store>
void draw(Generator<T> generator, std::int64_t n, T a, T b, std::uint64_t seed,
          std::uint64_t offset, int threads, const Store& store) {
  if (n <= 0) return;
  constexpr std::uint64_t width = values_per_block<T>;
  constexpr std::int64_t panel_size = panel_blocks * static_cast<std::int64_t>(width);
  const std::int64_t skipped = static_cast<std::int64_t>(offset % width);  // before element 0
  const std::int64_t panels = (skipped + n - 1) / panel_size + 1;
  parallel_for(threads, panels, 16, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) T panel[panel_size];
    for (std::int64_t p = begin; p < end; ++p) {
      const std::uint64_t counter = offset / width + static_cast<std::uint64_t>(p) * panel_blocks;
      generator(seed, counter, a, b, panel);
      const std::int64_t first = p * panel_size - skipped;
      const std::int64_t from = std::max<std::int64_t>(first, 0);
      const std::int64_t to = std::min(first + panel_size, n);
      store(from, to, panel + (from - first));
    }
  });
}

template <bool Normal>
void fill(void* out, std::int64_t n, DType dtype, double a, double b, std::uint64_t seed,
          std::uint64_t offset, int threads) {
  if (dtype == DType::f64) {
    static const Generator<double> generator = best_generator<double, Normal>();
    draw<double>(generator, n, a, b, seed, offset, threads,
                 [out](std::int64_t from, std::int64_t to, const double* values) {
                   std::copy_n(values, to - from, static_cast<double*>(out) + from);
                 });
    return;
  }
  static const Generator<float> generator = best_generator<float, Normal>();
  draw<float>(generator, n, static_cast<float>(a), static_cast<float>(b), seed, offset, threads,
              [out, dtype](std::int64_t from, std::int64_t to, const float* values) {
                if (dtype == DType::f32) {
                  std::copy_n(values, to - from, static_cast<float*>(out) + from);
                  return;
                }
                std::uint16_t* const narrow = static_cast<std::uint16_t*>(out) + from;
                if (dtype == DType::bf16) {
                  std::transform(values, values + (to - from), narrow, to_bf16);
                } else if (dtype == DType::f16) {
                  std::transform(values, values + (to - from), narrow, to_f16);
                }
              });
}

}  // namespace

void uniform(void* out, std::int64_t n, DType dtype, double low, double high, std::uint64_t seed,
             std::uint64_t offset, int threads) {
  fill<false>(out, n, dtype, low, high - low, seed, offset, threads);
}

void normal(void* out, std::int64_t n, DType dtype, double mean, double stddev, std::uint64_t seed,
            std::uint64_t offset, int threads) {
  fill<true>(out, n, dtype, mean, stddev, seed, offset, threads);
}

}  // namespace zerone::kernels::cpu
