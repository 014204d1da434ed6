// Of the driver's header: the types of the one function that khop asks the driver itself for.
#pragma once

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_DEVICE = 101 };
using CUdevice = int;
