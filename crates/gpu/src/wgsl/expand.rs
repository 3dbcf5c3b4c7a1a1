//! Activations in f16 for cooperative matrices.
//!
//! A workgroup has one row. The row's largest magnitude is brought to `2^14` to `2^15` by a power
//! of two, so that nothing overflows and values down to `2^-28` of the largest keep 11 bits.
//!
//! Layout: `[groups of 32, rows, 32]`, in which a stage of a tile is contiguous. Columns are filled
//! up to [`EXPANDED_UNIT`] and rows to whole tiles, with zeros. The four values of a word of
//! quantized activations are in the order 0, 2, 1, 3, as
//! [`Weights::halves`](super::weights::Weights::halves) gives weights.

use super::Code;
use super::output::entry;
use crate::kernel::ExpandKernel;

/// Divisor of the columns after filling up.
pub(crate) const EXPANDED_UNIT: u32 = 64;
const THREADS: u32 = 256;

pub(super) fn emit(code: &mut Code, e: &ExpandKernel) {
    let ExpandKernel { cols, quantized } = *e;
    code.line(format!(
        "enable f16;
        const WORDS: u32 = {}u; // 4-value words per row
        const FILLED: u32 = {}u; // with those of zeros",
        cols / 4,
        cols.next_multiple_of(EXPANDED_UNIT) / 4
    ));
    let out = if quantized { 2 } else { 1 };
    if quantized {
        code.line(format!("const GROUPS: u32 = {}u; // groups of 32 values per row", cols / 32));
        code.binding(0, "read", "x", "u32");
        code.binding(1, "read", "x_scales", "vec2<u32>");
    } else {
        code.binding(0, "read", "x", "vec4<f32>");
    }
    code.binding(out, "read_write", "out", "vec4<f16>");
    code.binding(out + 1, "read_write", "row_scales", "f32");
    code.line(format!("var<workgroup> peaks: array<f32, {THREADS}>;"));
    entry(code, THREADS, None, "@builtin(num_workgroups) count: vec3<u32>,");
    code.line(
        "let row = group.x;
        let batch = arrayLength(&x) / WORDS;
        var peak = 0.0;
        if (row < batch) {",
    );
    if quantized {
        code.line(format!(
            "for (var i = thread; i < GROUPS; i += {THREADS}u) {{
            peak = max(peak, 128.0 * bitcast<f32>(x_scales[row * GROUPS + i].x));
            }}"
        ));
    } else {
        code.line(format!(
            "for (var i = thread; i < WORDS; i += {THREADS}u) {{
            let v = abs(x[row * WORDS + i]);
            peak = max(peak, max(max(v.x, v.y), max(v.z, v.w)));
            }}"
        ));
    }
    code.line("}\npeaks[thread] = peak;\nworkgroupBarrier();");
    let mut stride = THREADS / 2;
    while stride > 0 {
        code.line(format!(
            "if (thread < {stride}u) {{
            peaks[thread] = max(peaks[thread], peaks[thread + {stride}u]);
            }}
            workgroupBarrier();"
        ));
        stride /= 2;
    }
    code.line(format!(
        "// Biased exponents of the largest magnitude, the factor and its inverse.
        let exponent = clamp(bitcast<u32>(peaks[0]) >> 23u, 15u, 254u);
        let factor = bitcast<f32>((268u - exponent) << 23u);
        if (thread == 0u) {{
        row_scales[row] = bitcast<f32>((exponent - 14u) << 23u);
        }}
        for (var i = thread; i < FILLED; i += {THREADS}u) {{
        var value = vec4<f32>();
        if (row < batch && i < WORDS) {{"
    ));
    if quantized {
        code.line(
            "let g = i >> 3u;
            let half = (i >> 2u) & 1u;
            let quants = vec4<f32>(unpack4xI8(x[((row * 2u + half) * GROUPS + g) * 4u + (i & 3u)]));
            value = (bitcast<f32>(x_scales[row * GROUPS + g].x) * factor) * quants.xzyw;",
        );
    } else {
        code.line("value = x[row * WORDS + i] * factor;");
    }
    code.line("}\nout[((i >> 3u) * count.x + row) * 8u + (i & 7u)] = vec4<f16>(value);\n}\n}");
}
