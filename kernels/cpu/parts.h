// Cuts a collapsed iteration space into parts of bounded size: the unit of parallel work and, in
// reductions, of the order of summation. Parts depend on the layouts alone, never on threads.
#pragma once

#include <algorithm>

#include <zerone/kernels/cpu/elementwise_isa.h>

namespace zerone::kernels::cpu {

/// The two innermost axes are cut into pieces; part(i) walks outer indices slowest.
template <int Operands>
struct Parts {
  struct Part {
    Rows<Operands> rows;
    std::array<std::int64_t, Operands> offsets{};  // of the part's first element
  };

  CollapsedAxes<Operands> axes;  // rank >= 2
  std::int64_t piece_rows = 1, piece_columns = 1;
  std::int64_t row_pieces = 0, column_pieces = 0, count = 0;

  /// Parts of at most about `elements` elements, whole rows where they are short.
  Parts(const CollapsedAxes<Operands>& collapsed, std::int64_t elements) : axes(collapsed) {
    pad();
    piece_columns = std::min(columns(), elements);
    piece_rows = std::min(rows(), elements / std::max<std::int64_t>(piece_columns, 1));
    finish();
  }
  Parts(const CollapsedAxes<Operands>& collapsed, std::int64_t rows_at_most,
        std::int64_t columns_at_most)
      : axes(collapsed), piece_rows(rows_at_most), piece_columns(columns_at_most) {
    pad();
    finish();
  }

  std::int64_t rows() const { return axes.sizes[axes.rank - 2]; }
  std::int64_t columns() const { return axes.sizes[axes.rank - 1]; }

  Part part(std::int64_t index) const {
    const int row_axis = axes.rank - 2, column_axis = axes.rank - 1;
    const std::int64_t column = index % column_pieces * piece_columns;
    index /= column_pieces;
    const std::int64_t row = index % row_pieces * piece_rows;
    index /= row_pieces;
    Part part;
    part.rows.rows = std::min(piece_rows, rows() - row);
    part.rows.columns = std::min(piece_columns, columns() - column);
    for (int k = 0; k < Operands; ++k) {
      part.rows.outer[k] = axes.strides[k][row_axis];
      part.rows.inner[k] = axes.strides[k][column_axis];
      part.offsets[k] = row * part.rows.outer[k] + column * part.rows.inner[k];
    }
    for (int axis = row_axis - 1; axis >= 0; --axis) {
      const std::int64_t at = index % axes.sizes[axis];
      index /= axes.sizes[axis];
      for (int k = 0; k < Operands; ++k) part.offsets[k] += at * axes.strides[k][axis];
    }
    return part;
  }

 private:
  /// Adds axes of size 1 in front until there are two.
  void pad() {
    while (axes.rank < 2) {
      axes.sizes[axes.rank] = axes.rank > 0 ? axes.sizes[axes.rank - 1] : 1;
      for (auto& strides : axes.strides) {
        strides[axes.rank] = axes.rank > 0 ? strides[axes.rank - 1] : 1;
      }
      if (axes.rank > 0) {
        axes.sizes[axes.rank - 1] = 1;
        for (auto& strides : axes.strides) strides[axes.rank - 1] = 0;
      }
      ++axes.rank;
    }
  }

  void finish() {
    piece_rows = std::max<std::int64_t>(piece_rows, 1);
    piece_columns = std::max<std::int64_t>(piece_columns, 1);
    row_pieces = (rows() + piece_rows - 1) / piece_rows;
    column_pieces = (columns() + piece_columns - 1) / piece_columns;
    count = row_pieces * column_pieces;
    for (int axis = 0; axis < axes.rank - 2; ++axis) count *= axes.sizes[axis];
  }
};

}  // namespace zerone::kernels::cpu
