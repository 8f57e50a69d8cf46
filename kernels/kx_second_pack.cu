/*
 * kx_second_pack.cu - the weights of kx_second.h's convolution as its products want them, each lane
 * 16 bytes at a time.
 *
 * forward: [tap][16 channels][piece][16 filters][lane][8 filters][half] words of two bf16: filter
 * lane / 4, channels 8 half + lane % 4 * 2 and the next.
 * backward: [tap][8 filters][16 channels][lane][8 channels][half] words, rounded to tf32: filter
 * lane % 4 + 4 half, channel lane / 4.
 */
#include "kernels/kx_gemm.cuh"
#include "kernels/kx_second.cuh"

__device__ static inline float weight_at(const float *weight, int f, int c, int tap)
{
	return weight[(f * SECOND_CHANNELS + c) * SECOND_TAPS + tap];
}

__device__ static inline uint32_t forward_word(const float *weight, int i)
{
	const int half = i % 2, lane = i / 4 % 32, f = i / 128 % 4 * 16 + i / 2 % 2 * 8 + lane / 4;
	const int c = i / 1024 % 2 * 16 + half * 8 + lane % 4 * 2, tap = i / 2048;
	uint32_t piece[SECOND_PIECES];
	two_pieces(piece, weight_at(weight, f, c, tap), weight_at(weight, f, c + 1, tap));
	return i / 512 % 2 ? piece[1] : piece[0];
}

__device__ static inline uint32_t backward_word(const float *weight, int i)
{
	const int half = i % 2, lane = i / 4 % 32, c = i / 128 % 2 * 16 + i / 2 % 2 * 8 + lane / 4;
	const int f = i / 256 % 8 * 8 + lane % 4 + 4 * half, tap = i / 2048;
	return to_tf32(weight_at(weight, f, c, tap));
}

__global__ void second_pack_kernel(struct kx_second l, const float *weight)
{
	await_previous();
	FOR_EACH (i, SECOND_FRAGMENTS) {
		l.forward[i] = forward_word(weight, (int)i);
		l.backward[i] = backward_word(weight, (int)i);
	}
}

int kx_second_pack(struct kx_second l, const float *weight, cudaStream_t stream)
{
	return kx_launch(second_pack_kernel, dim3(blocks_for(SECOND_FRAGMENTS, 256)), 256, 0,
		stream, l, weight);
}
