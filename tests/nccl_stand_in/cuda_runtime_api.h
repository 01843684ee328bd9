// SPDX-License-Identifier: BSD-3-Clause
// The part of CUDA's runtime that comm_nccl uses, on the streams of stand_in.hpp.
#pragma once

#include <cstddef>

// NOLINTBEGIN(readability-identifier-naming): these are CUDA's names
struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
enum cudaError_t { cudaSuccess, cudaErrorNotReady = 600, cudaErrorUnknown = 999 };
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDisableTiming = 2;

const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError();
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
// NOLINTEND(readability-identifier-naming)
