// What a cufile.h takes from CUDA's own header, for machines that have no toolkit: two types by name. Seen by
// cufile_header_test.cpp alone.
#pragma once

typedef enum CUresult_of_stub { CUDA_SUCCESS = 0 } CUresult;
typedef struct CUstream_of_stub* CUstream;
