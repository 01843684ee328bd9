// SPDX-License-Identifier: BSD-3-Clause
// Every byte of a file has a digest.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/checkpoint/checkpoint_manifest.hpp"

namespace mylos {
namespace {

/// 't' for each byte of a tensor, 'p' for each byte of a piece.
std::string bytes_of(const std::vector<PlacedTensor>& tensors, std::int64_t bytes) {
  std::string owners(static_cast<std::size_t>(bytes), ' ');
  const auto mark = [&](std::int64_t begin, std::int64_t end, char owner) {
    for (std::int64_t at = begin; at < end; ++at) {
      char& byte = owners.at(static_cast<std::size_t>(at));
      byte = byte == ' ' ? owner : '?';
    }
  };
  for (const PlacedTensor& tensor : tensors) mark(tensor.offset, tensor.end(), 't');
  for (const ManifestPiece& piece : pieces_around(tensors, bytes)) mark(piece.begin, piece.end, 'p');
  return owners;
}

TEST(Manifest, EveryByteIsOfATensorOrOfAPiece) {
  const TensorInfo one{"one", {1}};
  const TensorInfo two{"two", {2}};
  EXPECT_EQ(bytes_of({}, 3), "ppp");
  EXPECT_EQ(bytes_of({{one, 0}}, 4), "tttt");
  EXPECT_EQ(bytes_of({{one, 1}}, 6), "pttttp");
  // Tensors in any order, adjacent, and three bytes apart.
  EXPECT_EQ(bytes_of({{two, 9}, {one, 2}, {one, 17}}, 23), "ppttttppp" + std::string(12, 't') + "pp");
}

}  // namespace
}  // namespace mylos
