//! Helpers of the integer NEON leaves: loads and stores, horizontal sums.

use std::arch::aarch64::*;

/// 16 bytes of any kind, unaligned.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn load<T: bytemuck::Pod>(from: &T) -> uint8x16_t {
    const { assert!(size_of::<T>() == 16) };
    // SAFETY: `from` is 16 readable, initialized bytes; a load of bytes has no alignment rule.
    unsafe { vld1q_u8(std::ptr::from_ref(from).cast()) }
}

/// 16 signed bytes, unaligned.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load_signed<T: bytemuck::Pod>(from: &T) -> int8x16_t {
    vreinterpretq_s8_u8(load(from))
}

/// Four floats, unaligned.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load_f32(from: &[f32; 4]) -> float32x4_t {
    vreinterpretq_f32_u8(load(from))
}

/// Writes 16 bytes, unaligned.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn store<T: bytemuck::Pod>(to: &mut T, v: uint8x16_t) {
    const { assert!(size_of::<T>() == 16) };
    // SAFETY: `to` is 16 writable bytes of a type for which any bytes are a value; a store of bytes
    // has no alignment rule.
    unsafe { vst1q_u8(std::ptr::from_mut(to).cast(), v) }
}

/// Writes four floats, unaligned.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn store_f32(to: &mut [f32; 4], v: float32x4_t) {
    store(to, vreinterpretq_u8_f32(v));
}

/// Lane `i` of the result is the sum of the four lanes of `v[i]`.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn sums(v: [int32x4_t; 4]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]))
}

/// Sums of two products of 16-bit numbers each, for four rows or sub-blocks.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn pair_products(a: int16x8_t, b: int16x8_t) -> int32x4_t {
    vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b))
}

/// Two half-precision numbers, exactly.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn widen_two(a: [u8; 2], b: [u8; 2]) -> [f32; 2] {
    let bits = u64::from(u16::from_le_bytes(a)) | u64::from(u16::from_le_bytes(b)) << 16;
    let wide = vcvt_f32_f16(vreinterpret_f16_u16(vcreate_u16(bits)));
    [vgetq_lane_f32::<0>(wide), vgetq_lane_f32::<1>(wide)]
}
