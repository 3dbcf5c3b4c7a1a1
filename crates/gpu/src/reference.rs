//! Values in float64, and a seeded generator of inputs.

use half::f16;

use crate::repack::{Format, IQ4_NL_LEVELS, MXFP4_LEVELS, k_factors, k_quants, q6_k_quants};

/// Dequantizes whole blocks as the format defines.
pub(crate) fn dequantize(format: Format, bytes: &[u8]) -> Vec<f64> {
    let mut values = Vec::with_capacity(bytes.len() / format.block_bytes() * format.block_len());
    for block in bytes.chunks_exact(format.block_bytes()) {
        match format {
            Format::F16 => values.push(half_at(block, 0)),
            Format::Q8_0 => {
                let scale = half_at(block, 0);
                values.extend(block[2..].iter().map(|&q| scale * f64::from(q as i8)));
            }
            Format::Q4_0 => {
                let scale = half_at(block, 0);
                let value = |q: u8| scale * (f64::from(q) - 8.0);
                values.extend(block[2..].iter().map(|&q| value(q & 15)));
                values.extend(block[2..].iter().map(|&q| value(q >> 4)));
            }
            Format::IQ4NL => {
                let scale = half_at(block, 0);
                let value = |q: u8| scale * f64::from(IQ4_NL_LEVELS[usize::from(q)]);
                values.extend(block[2..].iter().map(|&q| value(q & 15)));
                values.extend(block[2..].iter().map(|&q| value(q >> 4)));
            }
            Format::MXFP4 => {
                let scale = 2.0_f64.powi(i32::from(block[0]) - 128);
                let value = |q: u8| scale * f64::from(MXFP4_LEVELS[usize::from(q)]);
                values.extend(block[1..].iter().map(|&q| value(q & 15)));
                values.extend(block[1..].iter().map(|&q| value(q >> 4)));
            }
            Format::Q4K | Format::Q5K => dequantize_k(format, block, &mut values),
            Format::Q6K => dequantize_q6_k(block, &mut values),
        }
    }
    values
}

fn dequantize_k(format: Format, block: &[u8], values: &mut Vec<f64>) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for group in 0..8 {
        let (scale, min) = k_factors(&block[4..16], group);
        let value = |q| d * f64::from(scale) * f64::from(q) - dmin * f64::from(min);
        values.extend(k_quants(format, block, group).map(value));
    }
}

fn dequantize_q6_k(block: &[u8], values: &mut Vec<f64>) {
    let d = half_at(block, 208);
    for group in 0..8 {
        for (i, q) in q6_k_quants(block, group).into_iter().enumerate() {
            let scale = block[192 + 2 * group + i / 16] as i8;
            values.push(d * f64::from(scale) * (f64::from(q) - 32.0));
        }
    }
}

fn half_at(bytes: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f64()
}

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
    is_small: bool,
}

impl Random {
    pub(crate) fn new(state: u64) -> Self {
        Self { state, is_small: false }
    }

    /// Generator of small shapes.
    pub(crate) fn small(state: u64) -> Self {
        Self { state, is_small: true }
    }

    /// Limit of a dimension: `usual`, or `small` for small shapes.
    pub(crate) fn limit<T>(&self, usual: T, small: T) -> T {
        if self.is_small { small } else { usual }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `-1..1`.
    pub(crate) fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Uniform in `low..=high`.
    pub(crate) fn range(&mut self, low: u32, high: u32) -> u32 {
        low + (self.bits() % u64::from(high - low + 1)) as u32
    }

    pub(crate) fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }

    /// Random quant blocks for `values` values of magnitude about 0.05.
    pub(crate) fn weights(&mut self, format: Format, values: usize) -> Vec<u8> {
        let mut bytes = vec![0; values / format.block_len() * format.block_bytes()];
        for word in bytes.chunks_mut(8) {
            let random = self.bits().to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
        let scale = match format {
            Format::F16 => 0.05,
            Format::Q8_0 | Format::IQ4NL => 0.0005,
            Format::Q4_0 => 0.006,
            Format::Q4K => 0.0002,
            Format::Q5K => 0.0001,
            Format::Q6K => 0.00003,
            Format::MXFP4 => {
                for block in bytes.chunks_exact_mut(format.block_bytes()) {
                    block[0] = 118 + block[0] % 5;
                }
                return bytes;
            }
        };
        let at = if format == Format::Q6K { 208 } else { 0 };
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale * self.value()).to_le_bytes());
            if format.has_min() {
                block[2..4].copy_from_slice(&f16::from_f32(8.0 * scale * self.value()).to_le_bytes());
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_kernels::quant::WeightFormat;

    use super::*;

    #[test]
    fn values_equal_those_of_the_cpu_formats() {
        let mut random = Random::new(1);
        let pairs = [
            (Format::F16, WeightFormat::F16),
            (Format::Q8_0, WeightFormat::Q8_0),
            (Format::Q4_0, WeightFormat::Q4_0),
            (Format::IQ4NL, WeightFormat::IQ4NL),
            (Format::MXFP4, WeightFormat::MXFP4),
            (Format::Q4K, WeightFormat::Q4K),
            (Format::Q5K, WeightFormat::Q5K),
            (Format::Q6K, WeightFormat::Q6K),
        ];
        for (format, cpu) in pairs {
            assert_eq!((format.name(), format.block_len()), (cpu.name(), cpu.block_len()));
            let bytes = random.weights(format, 1024);
            let mut expected = vec![0.0; 1024];
            cpu.dequantize(&bytes, &mut expected);
            for (value, expected) in dequantize(format, &bytes).iter().zip(expected) {
                let expected = f64::from(expected);
                assert!((value - expected).abs() <= 1e-6 * (expected.abs() + 0.01), "{value} {expected}");
            }
        }
    }
}
