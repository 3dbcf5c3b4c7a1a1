//! Kernels of the core pack: WebAssembly without imports, allocator or standard library.
//!
//! The interface is in `docs/kernel-packs.md`; each export computes the operation of a category
//! with the signature that is listed there. `cargo xtask core-pack` builds the module.

#![no_std]
#![no_main]
// Stable since Rust 1.88; the compiler of the target is older.
#![feature(slice_as_chunks)]

mod abi;
mod exp;
mod kv;
mod lanes;
mod lora;
mod rms_norm;
mod rope;
mod swiglu;
mod value;

use value::Half;

/// Exports a function of a request under a name.
macro_rules! exports {
    ($($name:ident => $function:expr;)*) => {$(
        /// Entry point: offset and number of descriptors, return code.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(descriptors: u32, count: u32) -> u32 {
            abi::each(descriptors, count, $function) as u32
        }
    )*};
}

exports! {
    rms_norm_f32 => rms_norm::rms_norm::<f32>;
    rms_norm_f16 => rms_norm::rms_norm::<Half>;
    swiglu_f32 => swiglu::swiglu::<f32>;
    swiglu_f16 => swiglu::swiglu::<Half>;
    rope_f32 => rope::rope::<f32>;
    rope_f16 => rope::rope::<Half>;
    rope_q8_0 => rope::rope_q8_0;
    kv_pack_q8_0 => kv::pack_q8_0;
    kv_pack_q4_0 => kv::pack_q4_0;
    kv_unpack_q8_0 => kv::unpack_q8_0;
    kv_unpack_q4_0 => kv::unpack_q4_0;
    lora_apply_f32 => lora::lora_apply::<f32>;
    lora_apply_f16 => lora::lora_apply::<Half>;
}

/// A bug of a kernel is a trap: the host drops the instance and computes natively.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
