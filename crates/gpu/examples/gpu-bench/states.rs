//! Times of layers with a state.

use ruvllm_gpu::{
    Buffer, ConvolutionForm, ConvolutionKernel, DeltaRuleKernel, Dispatch, Gpu, Result, SelectiveScanKernel,
    Span, Spans,
};

use crate::json::Json;
use crate::measure::{heat, seconds_each};

/// Prints microseconds per launch of one sequence with the widths of Qwen 3.5 9B (convolution,
/// gated delta rule) and of Falcon-H1 7B (selective scan). A prompt keeps the states behind two
/// rows.
pub(crate) fn run(gpu: &Gpu, quick: bool, json: &mut Json) -> Result<()> {
    println!("\nlayers with a state, one sequence: us");
    let scale = if quick { 16 } else { 1 };
    for rows in [512 / scale, 1] {
        let spans = Spans::new(gpu, rows)?.of_one_sequence();
        let kept = [(rows / 2, 0), (rows - 1, 1)];
        spans.write(gpu, &[Span { from: None, first: 0, rows }], &kept[usize::from(rows == 1)..])?;
        let launches = [
            ("convolution", convolution(gpu, rows, 8192 / scale, &spans)?),
            ("delta rule", delta_rule(gpu, rows, 16 / scale, &spans)?),
            ("selective scan", selective_scan(gpu, rows, 32 / scale, &spans)?),
        ];
        heat(gpu, &[&launches[1].1], quick)?;
        for (name, launch) in &launches {
            let micros = seconds_each(gpu, &[launch], quick)?.map(|s| s * 1e6);
            let name = format!("{name}, {rows} rows");
            println!("{name:24} {:.2} ({:.2} to {:.2})", micros.median, micros.low, micros.high);
            json.operation(&name, micros);
        }
    }
    Ok(())
}

fn filled(gpu: &Gpu, n: u32, value: f32) -> Result<Buffer> {
    gpu.upload(&vec![value; n as usize])
}

/// Slots of states.
const SLOTS: u64 = 2;

fn convolution(gpu: &Gpu, rows: u32, channels: u32, spans: &Spans) -> Result<Dispatch> {
    let form = ConvolutionForm::Silu { biased: false };
    let key = ConvolutionKernel { form, channels, taps: 4, width: channels, one_sequence: rows > 1 };
    let (x, weights) = (filled(gpu, rows * channels, 0.5)?, filled(gpu, 4 * channels, 0.25)?);
    let state = gpu.zeroed(SLOTS * 3 * u64::from(channels) * 4)?;
    let out = gpu.zeroed(x.len())?;
    gpu.convolve(key, &x, (&weights, None), (&state, spans), &out)
}

fn delta_rule(gpu: &Gpu, rows: u32, key_heads: u32, spans: &Spans) -> Result<Dispatch> {
    let value_heads = 2 * key_heads;
    let key = DeltaRuleKernel { key_heads, value_heads, key_dim: 128, value_dim: 128, grouped: true };
    let x = filled(gpu, rows * (2 * key_heads + value_heads) * 128, 0.1)?;
    let (rates, heads) = (filled(gpu, rows * 2 * value_heads, 0.5)?, filled(gpu, 2 * value_heads, -1.0)?);
    let state = gpu.zeroed(SLOTS * u64::from(value_heads) * 128 * 128 * 4)?;
    let out = gpu.zeroed(u64::from(rows * value_heads) * 128 * 4)?;
    gpu.delta_rule(key, (&x, &rates), &heads, (&state, spans), &out)
}

fn selective_scan(gpu: &Gpu, rows: u32, heads: u32, spans: &Spans) -> Result<Dispatch> {
    let key = SelectiveScanKernel { heads, head_dim: 64, groups: 1, state_dim: 256 };
    let x = filled(gpu, rows * (heads * 64 + 2 * 256), 0.1)?;
    let (steps, factors) = (filled(gpu, rows * heads, 0.5)?, filled(gpu, 3 * heads, -1.0)?);
    let state = gpu.zeroed(SLOTS * u64::from(heads) * 64 * 256 * 4)?;
    let out = gpu.zeroed(u64::from(rows * heads) * 64 * 4)?;
    gpu.selective_scan(key, (&x, &steps), &factors, (&state, spans), &out)
}
