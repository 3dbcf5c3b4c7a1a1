//! Properties of the weight formats; [`goldens`] has values of other implementations.

mod goldens;
mod matrix;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::quant::WeightFormat;

#[test]
fn dequantized_bits_are_those_of_every_instruction_set() {
    let original: Vec<f32> = (0..512).map(|i| ((i * 71 % 127) as f32 - 60.0) * 0.013).collect();
    for format in WeightFormat::ALL {
        let mut bytes = vec![0; format.row_bytes(512).unwrap()];
        format.quantize(&original, &mut bytes);
        let mut expected = [0.0; 512];
        format.dequantize(&bytes, &mut expected);
        for kernels in Kernels::available() {
            let mut values = [1.0; 512];
            kernels.dequantize(format, &bytes, &mut values);
            assert_eq!(
                values.map(f32::to_bits),
                expected.map(f32::to_bits),
                "{} {}",
                format.name(),
                kernels.isa()
            );
        }
    }
}

#[test]
fn sizes_are_those_of_the_file_format() {
    let plain = [(1, 4), (1, 2), (1, 2)];
    let simple = [(32, 34), (32, 18), (32, 20), (32, 22), (32, 24)];
    let k = [(256, 84), (256, 110), (256, 144), (256, 176), (256, 210)];
    let non_linear = [(32, 18), (256, 136)];
    let iq = [(32, 17), (256, 66), (256, 74), (256, 82), (256, 98), (256, 110), (256, 50), (256, 56)];
    let ternary = [(256, 54), (256, 66)];
    let sizes = [&plain[..], &simple, &k, &non_linear, &iq, &ternary].concat();
    assert_eq!(sizes.len(), WeightFormat::ALL.len());
    for (format, (len, bytes)) in WeightFormat::ALL.into_iter().zip(sizes) {
        assert_eq!((format.block_len(), format.block_bytes()), (len, bytes), "{}", format.name());
    }
}

#[test]
fn a_row_is_whole_blocks() {
    assert_eq!(WeightFormat::Q4K.row_bytes(512), Some(288));
    assert_eq!(WeightFormat::Q4K.row_bytes(511), None);
    assert_eq!(WeightFormat::Q8_0.row_bytes(0), Some(0));
    assert_eq!(WeightFormat::F32.row_bytes(usize::MAX), None);
}

#[test]
fn blocks_of_zeros_decode_to_zeros() {
    for format in WeightFormat::ALL {
        let mut bytes = vec![0xff; format.row_bytes(512).unwrap()];
        format.quantize(&[0.0; 512], &mut bytes);
        let mut values = [1.0; 512];
        format.dequantize(&bytes, &mut values);
        assert!(values.iter().all(|&x| x == 0.0), "{}", format.name());
    }
}

#[test]
fn quantizing_again_loses_less_than_a_step() {
    for format in WeightFormat::ALL {
        let original: Vec<f32> = (0..512).map(|i| ((i * 37 % 101) as f32 - 40.0) * 0.01).collect();
        let mut bytes = vec![0; format.row_bytes(512).unwrap()];
        let mut once = vec![0.0; 512];
        format.quantize(&original, &mut bytes);
        format.dequantize(&bytes, &mut once);
        let mut twice = vec![0.0; 512];
        format.quantize(&once, &mut bytes);
        format.dequantize(&bytes, &mut twice);
        for (a, b) in once.iter().zip(&twice) {
            let step = if format.block_bytes() * 8 < 3 * format.block_len() { 0.5 } else { 1.0 / 15.0 };
            assert!((a - b).abs() <= step, "{}: {a} became {b}", format.name());
        }
    }
}

#[test]
#[should_panic(expected = "Q6_K: 209 bytes do not hold 256 values")]
fn short_bytes_are_refused() {
    WeightFormat::Q6K.dequantize(&[0; 209], &mut [0.0; 256]);
}

#[test]
fn numbers_that_are_not_finite_do_not_stop_a_quantizer() {
    for format in WeightFormat::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE / 4.0] {
            let mut values = [0.5; 256];
            values[100] = bad;
            let mut bytes = vec![0; format.row_bytes(256).unwrap()];
            format.quantize(&values, &mut bytes);
            format.dequantize(&bytes, &mut values);
        }
    }
}

#[test]
fn ternary_values_are_kept() {
    let values: [f32; 256] = std::array::from_fn(|i| [-0.25, 0.0, 0.25][i * 7 % 31 % 3]);
    let mut found = [0.0; 256];
    for format in [WeightFormat::TQ1_0, WeightFormat::TQ2_0] {
        let mut bytes = vec![0; format.block_bytes()];
        format.quantize(&values, &mut bytes);
        format.dequantize(&bytes, &mut found);
        assert_eq!(found, values, "{}", format.name());
    }
}
