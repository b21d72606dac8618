"""T2, 3D tensor times matrix: Hopper's warpgroup products in TF32, fed by the tensor memory accelerator."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <cuda_runtime.h>

constexpr int BM = 128;
constexpr int BN = 256;
constexpr int BK = 32;  // 128 bytes: one line of the swizzled tiles
constexpr int STAGES = 4;
constexpr int THREADS = 288;  // two warpgroups that multiply and a warp that loads
constexpr int A_BYTES = BM * BK * 4, B_BYTES = BN * BK * 4;
constexpr int SHARED_BYTES = STAGES * (A_BYTES + B_BYTES) + 1024;
constexpr int GROUP = 16;

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\n"
        "bra again;\n"
        "ready:\n"
        "}\n" ::"r"(shared_address(barrier)), "r"(parity)
        : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void load_tile(void* to, const CUtensorMap* map, uint64_t* barrier, int k, int row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];\n"
        ::"r"(shared_address(to)), "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(k), "r"(row)
        : "memory");
}

// Descriptor of a tile of lines of 128 bytes with the 128-byte swizzle; groups of 8 lines are 1024 bytes apart.
__device__ __forceinline__ uint64_t descriptor(const void* tile) {
    const uint64_t address = shared_address(tile);
    return ((address & 0x3FFFF) >> 4) | (uint64_t{1} << 16) | (uint64_t{64} << 32) | (uint64_t{1} << 62);
}

__device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, add, 1, 1;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
        "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b));
}

__global__ void __launch_bounds__(THREADS, 1) gemm_wgmma_kernel(
    const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, float* __restrict__ c, int m,
    int n, int k) {
    extern __shared__ uint8_t raw[];
    __shared__ __align__(8) uint64_t full[STAGES], empty[STAGES];
    uint8_t* a_tiles = raw + (1024 - shared_address(raw) % 1024) % 1024;
    uint8_t* b_tiles = a_tiles + STAGES * A_BYTES;

    const int column_tiles = n / BN;
    const int group = blockIdx.x / (GROUP * column_tiles);
    const int group_rows = min(m / BM - group * GROUP, GROUP);
    const int within = blockIdx.x - group * GROUP * column_tiles;
    const int row = (group * GROUP + within % group_rows) * BM;
    const int column = within / group_rows * BN;
    const int steps = k / BK;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], 8);  // one arrival from each warp that multiplies
        }
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    }
    __syncthreads();

    const int warpgroup = threadIdx.x / 128;
    if (warpgroup == 2) {
        if (threadIdx.x == 256) {
            for (int step = 0; step < steps; ++step) {
                const int slot = step % STAGES;
                // The first round finds every slot empty: a barrier's phase before its first passes for complete.
                barrier_wait(&empty[slot], (step / STAGES + 1) % 2);
                barrier_expect(&full[slot], A_BYTES + B_BYTES);
                load_tile(a_tiles + slot * A_BYTES, &a_map, &full[slot], step * BK, row);
                load_tile(b_tiles + slot * B_BYTES, &b_map, &full[slot], step * BK, column);
            }
        }
    } else {
        float d[BN / 2];
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) d[i] = 0.0f;
        for (int step = 0; step < steps; ++step) {
            const int slot = step % STAGES;
            barrier_wait(&full[slot], step / STAGES % 2);
            const uint64_t a = descriptor(a_tiles + slot * A_BYTES + warpgroup * (A_BYTES / 2));
            const uint64_t b = descriptor(b_tiles + slot * B_BYTES);
            asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
            for (int i = 0; i < BK / 8; ++i) wgmma(d, a + 2 * i, b + 2 * i);  // 8 floats are 32 bytes
            asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
            if (threadIdx.x % 32 == 0) barrier_arrive(&empty[slot]);
        }
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        float* out = c + static_cast<int64_t>(row + warpgroup * 64 + warp * 16 + lane / 4) * n + column + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < BN / 8; ++j) {
            float* to = out + j * 8;
            *reinterpret_cast<float2*>(to) = make_float2(d[4 * j], d[4 * j + 1]);
            *reinterpret_cast<float2*>(to + 8 * static_cast<int64_t>(n)) = make_float2(d[4 * j + 2], d[4 * j + 3]);
        }
    }
}

__global__ void transpose_kernel(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
    __shared__ float tile[32][33];
    const int x0 = blockIdx.x * 32, y0 = blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += 8) {
        tile[i][threadIdx.x] = x[static_cast<int64_t>(y0 + i) * columns + x0 + threadIdx.x];
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) {
        y[static_cast<int64_t>(x0 + i) * rows + y0 + threadIdx.x] = tile[threadIdx.x][i];
    }
}

static torch::Tensor transposed(const torch::Tensor& x) {
    const int rows = static_cast<int>(x.size(0)), columns = static_cast<int>(x.size(1));
    TORCH_CHECK(rows % 32 == 0 && columns % 32 == 0, "sizes must be multiples of 32");
    auto y = torch::empty({columns, rows}, x.options());
    transpose_kernel<<<dim3(columns / 32, rows / 32), dim3(32, 8), 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), rows, columns);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}

using PFN_cuTensorMapEncodeTiled_t = CUresult (*)(
    CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The map of a row-major [rows][inner] matrix in boxes of box_rows lines; TFLOAT32 rounds on the way to shared memory.
static CUtensorMap tensor_map(const float* data, int64_t rows, int64_t inner, int box_rows) {
    static PFN_cuTensorMapEncodeTiled_t encode = nullptr;
    if (encode == nullptr) {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found;
        C10_CUDA_CHECK(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
        TORCH_CHECK(found == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
        encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_t>(entry);
    }
    CUtensorMap map;
    const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(inner), static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(inner) * sizeof(float)};
    const cuuint32_t box[2] = {BK, static_cast<cuuint32_t>(box_rows)};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult result = encode(
        &map, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 2, const_cast<float*>(data), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TORCH_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed with ", static_cast<int>(result));
    return map;
}

torch::Tensor tensor_matmul(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(a.is_cuda() && b.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(a.scalar_type() == torch::kFloat32 && b.scalar_type() == torch::kFloat32, "inputs must be float32");
    const at::cuda::OptionalCUDAGuard guard(device_of(a));
    a = a.contiguous();
    b = b.contiguous();
    TORCH_CHECK(a.dim() == 3 && b.dim() == 2, "expected a 3D tensor and a matrix");
    const int64_t inner = a.size(2), m = a.numel() / inner, inner_b = b.size(0), n = b.size(1);
    TORCH_CHECK(inner == inner_b, "inner dimensions differ: ", inner, " and ", inner_b);
    TORCH_CHECK(m % BM == 0 && n % BN == 0 && inner % BK == 0, "sizes must be multiples of the tile");
    auto b_rows = transposed(b);  // the tensor cores want the inner dimension contiguous
    auto c = torch::empty({a.size(0), a.size(1), n}, a.options());
    const CUtensorMap a_map = tensor_map(a.data_ptr<float>(), m, inner, BM);
    const CUtensorMap b_map = tensor_map(b_rows.data_ptr<float>(), n, inner, BN);
    C10_CUDA_CHECK(
        cudaFuncSetAttribute(gemm_wgmma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    const unsigned blocks = static_cast<unsigned>((m / BM) * (n / BN));
    gemm_wgmma_kernel<<<blocks, THREADS, SHARED_BYTES, at::cuda::getCurrentCUDAStream()>>>(
        a_map, b_map, c.data_ptr<float>(), static_cast<int>(m), static_cast<int>(n), static_cast<int>(inner));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return c;
}
"""

cpp_source = "torch::Tensor tensor_matmul(torch::Tensor a, torch::Tensor b);"

extension = load_inline(
    name="t2_wgmma",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["tensor_matmul"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return extension.tensor_matmul(a, b)
