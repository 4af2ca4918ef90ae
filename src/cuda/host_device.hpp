// Marks functions that the host and kernels share.
#pragma once

#ifdef __CUDACC__
#define ATTEND_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ATTEND_HOST_DEVICE inline
#endif
