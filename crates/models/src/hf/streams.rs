//! Several residual streams in `config.json` and the weights, and gates of which few pass
//! (Gemma 3n).

use std::collections::BTreeMap;

use gguf_rs_lite::{Array, TensorInfo};
use serde_json::Value;

use super::fields::Fields;
use super::keys::Keys;
use super::origin::{Origin, Slice, Tensor};
use super::shards::Stored;
use super::sizes::{MAX_WIDTH, Sizes, StreamSizes};
use crate::error::{Error, Result};
use crate::family::MAX_STREAMS;

/// Lists of matrices, one for each stream but the first, and the tensors that GGUF has in their
/// place.
const LISTS: [(&str, &str); 2] =
    [("altup_projections", "altup_proj.weight"), ("altup_unembed_projections", "altup_unembd_proj.weight")];

/// Reads the fields of several streams and writes their keys.
pub(super) fn convert(config: &Fields<'_>, n_layers: usize, keys: &mut Keys) -> Result<StreamSizes> {
    const SCALE: &str = "altup_correct_scale";
    let count = config.count("altup_num_inputs", 2..=MAX_STREAMS)?.unwrap_or(4);
    keys.count("altup.num_inputs", count);
    keys.count("altup.active_idx", config.count("altup_active_idx", 0..=count - 1)?.unwrap_or(0));
    if config.flag(SCALE)? == Some(false) {
        return Err(config.invalid(SCALE, "true: readers of GGUF know no other"));
    }
    let cutoffs = read_shares(config, n_layers)?.into_iter().map(cutoff).collect();
    keys.array("activation_sparsity_scale", Array::F32(cutoffs));
    Ok(StreamSizes { count, rank: config.count("laurel_rank", 1..=MAX_WIDTH)?.unwrap_or(64) })
}

/// Share of gates that do not pass, `[n_layers]`; 0 in layers where all do.
fn read_shares(config: &Fields<'_>, n_layers: usize) -> Result<Vec<f64>> {
    const SHARES: &str = "activation_sparsity_pattern";
    let Some(listed) = config.list(SHARES)? else {
        let n_sparse = if n_layers > 10 { 10 } else { 0 };
        return Ok((0..n_layers).map(|layer| if layer < n_sparse { 0.95 } else { 0.0 }).collect());
    };
    let share = |value: &Value| value.as_f64().filter(|&share| share == 0.0 || SHARE_RANGE.contains(&share));
    let shares: Option<Vec<f64>> = listed.iter().map(share).collect();
    shares.filter(|shares| shares.len() == n_layers).ok_or_else(|| {
        let (least, most) = (SHARE_RANGE.start(), SHARE_RANGE.end());
        config.invalid(SHARES, format!("0 or a number from {least} to {most} for each of {n_layers} layers"))
    })
}

/// Shares that have a cutoff.
const SHARE_RANGE: std::ops::RangeInclusive<f64> = 1e-6..=1.0 - 1e-6;

/// Standard deviations above the mean below which a share of gates lies.
fn cutoff(share: f64) -> f32 {
    if share == 0.0 { f32::NEG_INFINITY } else { quantile(share) as f32 }
}

/// Quantile of the standard normal distribution, with an error of 1e-15, for probabilities from
/// 1e-10 to 1 - 1e-10.
///
/// Source: M. J. Wichura, Algorithm AS 241, Applied Statistics 37 (1988).
fn quantile(probability: f64) -> f64 {
    const INNER: [[f64; 8]; 2] = [
        [
            2.509_080_928_730_122_7e3,
            3.343_057_558_358_813e4,
            6.726_577_092_700_87e4,
            4.592_195_393_154_987e4,
            1.373_169_376_550_946e4,
            1.971_590_950_306_551_3e3,
            1.331_416_678_917_843_8e2,
            3.387_132_872_796_366_5,
        ],
        [
            5.226_495_278_852_854e3,
            2.872_908_573_572_194_3e4,
            3.930_789_580_009_271e4,
            2.121_379_430_158_659_7e4,
            5.394_196_021_424_751e3,
            6.871_870_074_920_579e2,
            4.231_333_070_160_091e1,
            1.0,
        ],
    ];
    const OUTER: [[f64; 8]; 2] = [
        [
            7.745_450_142_783_414e-4,
            2.272_384_498_926_918_4e-2,
            2.417_807_251_774_506e-1,
            1.270_458_252_452_368_4,
            3.647_848_324_763_204_5,
            5.769_497_221_460_691,
            4.630_337_846_156_546,
            1.423_437_110_749_683_5,
        ],
        [
            1.050_750_071_644_416_9e-9,
            5.475_938_084_995_345e-4,
            1.519_866_656_361_645_7e-2,
            1.481_039_764_274_800_8e-1,
            6.897_673_349_851e-1,
            1.676_384_830_183_803_8,
            2.053_191_626_637_759,
            1.0,
        ],
    ];
    let ratio = |[above, below]: [[f64; 8]; 2], at: f64| {
        let of = |coefficients: [f64; 8]| coefficients.into_iter().fold(0.0, |sum, next| sum * at + next);
        of(above) / of(below)
    };
    let from_median = probability - 0.5;
    if from_median.abs() <= 0.425 {
        return from_median * ratio(INNER, 0.180_625 - from_median * from_median);
    }
    let tail = probability.min(1.0 - probability);
    ratio(OUTER, (-tail.ln()).sqrt() - 1.6).copysign(from_median)
}

/// Matrices of the [`LISTS`], until those of all streams are there.
#[derive(Default)]
pub(super) struct StreamProjections(BTreeMap<(usize, usize), Stored>);

impl StreamProjections {
    /// Takes a tensor if it is one of these. `name` is without the prefix of the model.
    pub(super) fn take(&mut self, name: &str, stored: Stored) -> Result<Option<Stored>> {
        let place = LISTS.iter().enumerate().find_map(|(list, (beginning, _))| {
            let index = name.strip_prefix(beginning)?.strip_prefix('.')?.strip_suffix(".weight")?;
            // Written back, so that `+1` and `01` are no numbers.
            let number = index.parse::<usize>().ok().filter(|number| number.to_string() == index)?;
            Some((list, number))
        });
        let Some(place) = place else { return Ok(Some(stored)) };
        match self.0.insert(place, stored) {
            Some(replaced) => Err(Error::DuplicateTensor { name: replaced.name }),
            None => Ok(None),
        }
    }

    /// The stacked tensors.
    ///
    /// # Errors
    /// A matrix that is missing, left over, or of another shape or type than the first.
    pub(super) fn finish(mut self, sizes: &Sizes, architecture: &str) -> Result<Vec<Tensor>> {
        let n = sizes.streams.map_or(0, |streams| streams.count - 1);
        let dim = sizes.model_dim as u64;
        let mut tensors = Vec::with_capacity(LISTS.len());
        for (list, (beginning, gguf)) in LISTS.into_iter().enumerate() {
            let mut slices: Vec<Slice> = Vec::with_capacity(n);
            for index in 0..n {
                let missing = || Error::MissingTensor { name: format!("model.{beginning}.{index}.weight") };
                let stored = self.0.remove(&(list, index)).ok_or_else(missing)?;
                if stored.dims != [dim, dim] {
                    let (name, found) = (stored.name, stored.dims);
                    return Err(Error::TensorShape { name, expected: vec![dim, dim], found });
                }
                let type_of_list = slices.first().map_or(stored.type_name, |first| first.stored.type_name);
                if stored.type_name != type_of_list {
                    let (name, found) = (stored.name, stored.type_name);
                    let supported = format!("{type_of_list}, as the first of them");
                    return Err(Error::UnsupportedTensorType { name, found, supported });
                }
                slices.push(Slice::whole(&stored));
            }
            let Some(first) = slices.first() else { continue };
            let info = TensorInfo::new(gguf, [dim, dim, n as u64], first.stored.supported_type()?)?;
            tensors.push(Tensor { info, origin: Origin::Stacked(slices) });
        }
        match self.0.into_values().next() {
            None => Ok(tensors),
            Some(stored) => {
                Err(Error::UnexpectedTensor { name: stored.name, architecture: architecture.to_owned() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles of these doubles, computed with 40 digits.
    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        for (probability, expected) in [
            (0.5, 0.0),
            (0.95, 1.644_853_626_951_472_2),
            (0.9, 1.281_551_565_544_600_4),
            (0.05, -1.644_853_626_951_472_9),
            (0.999_999, 4.753_424_308_817_088),
            (0.3, -0.524_400_512_708_041),
        ] {
            let found = quantile(probability);
            assert!((found - expected).abs() < 1e-12, "{probability}: {found}");
        }
        assert_eq!(cutoff(0.0), f32::NEG_INFINITY);
    }
}
