//! Reads of repacked weights: the load and the unpacking of a step (32 values of a quantized
//! format, 8 of F16).

use super::Code;
use crate::kernel::{GatherKernel, Target};
use crate::repack::Format;

/// Weights of one format on a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights {
    pub(super) format: Format,
    /// f16 scales are bound as such.
    pub(super) f16: bool,
}

impl Weights {
    pub(super) fn new(format: Format, target: Target) -> Self {
        let scales = matches!(format, Format::Q8_0 | Format::Q4_0 | Format::IQ4NL | Format::Q6K);
        Self { format, f16: target.f16 && scales }
    }

    /// Names and element types of the planes' bindings, and the extension that they need.
    pub(super) fn planes(self) -> Vec<(&'static str, &'static str)> {
        let half = if self.f16 { "f16" } else { "u32" };
        let quants = ("quants", "vec4<u32>");
        match self.format {
            Format::F16 => vec![quants],
            Format::Q8_0 | Format::Q4_0 | Format::IQ4NL => vec![quants, ("scales", half)],
            Format::MXFP4 => vec![quants, ("exponents", "u32")],
            Format::Q4K => vec![quants, ("headers", "vec4<u32>")],
            Format::Q5K => vec![quants, ("headers", "vec4<u32>"), ("high", "u32")],
            Format::Q6K => vec![quants, ("factors", "u32"), ("high", "vec2<u32>"), ("scales", half)],
        }
    }

    /// Preamble, constants `ROWS` and `STEPS`, and the planes' bindings from 0 on; returns their
    /// number.
    pub(super) fn declare(self, code: &mut Code, rows: u32, cols: u32) -> u32 {
        if self.f16 {
            code.line("enable f16;");
        }
        code.line(format!(
            "const ROWS: u32 = {rows}u; // weight rows\nconst STEPS: u32 = {}u; // steps per row",
            cols / self.format.step_values()
        ));
        let planes = self.planes();
        for (index, (name, element)) in (0..).zip(&planes) {
            code.binding(index, "read", name, element);
        }
        if let Some(values) = self.format.levels() {
            levels(code, values);
        }
        planes.len() as u32
    }

    /// Fills the table of levels, if the format has one, in workgroup memory, at the begin of the
    /// entry point.
    pub(super) fn prepare(self, code: &mut Code, threads: u32) {
        if self.format.levels().is_some() {
            code.line(format!(
                "for (var i = thread; i < 256u; i += {threads}u) {{
                pairs[i] = level(i & 15u) | (level(i >> 4u) << 8u);
                }}
                workgroupBarrier();"
            ));
        }
    }

    /// Loads step `i{u}` of the row that begins at step `row{r}`.
    pub(super) fn load(self, code: &mut Code, u: u32, r: u32) {
        let at = format!("row{r} + i{u}");
        let name = format!("{u}_{r}");
        if self.format == Format::Q8_0 {
            code.line(format!(
                "let a{name} = quants[row{r} * 2u + i{u}];\nlet c{name} = quants[row{r} * 2u + STEPS + i{u}];"
            ));
        } else {
            code.line(format!("let w{name} = quants[{at}];"));
        }
        match self.format {
            Format::F16 => (),
            Format::Q8_0 | Format::Q4_0 | Format::IQ4NL => self.load_half(code, &name, &at),
            // Half of the power of two; the two smallest ones become zero.
            Format::MXFP4 => code.line(format!(
                "let power{name} = (exponents[({at}) >> 2u] >> ((({at}) & 3u) * 8u)) & 0xffu;
                let d{name} = bitcast<f32>((max(power{name}, 1u) - 1u) << 23u);"
            )),
            Format::Q4K | Format::Q5K => code.line(format!("let f{name} = headers[({at}) >> 3u];")),
            Format::Q6K => {
                code.line(format!("let f{name} = factors[({at}) >> 1u] >> ((i{u} & 1u) * 16u);"));
                self.load_half(code, &name, &format!("({at}) >> 3u"));
            }
        }
        if matches!(self.format, Format::Q5K | Format::Q6K) {
            code.line(format!("let h{name} = high[{at}];"));
        }
    }

    /// An f16 of `scales` as f32.
    fn load_half(self, code: &mut Code, name: &str, at: &str) {
        code.line(if self.f16 {
            format!("let d{name} = f32(scales[{at}]);")
        } else {
            format!("let d{name} = unpack2x16float(scales[({at}) >> 1u] >> ((({at}) & 1u) * 16u)).x;")
        });
    }

    /// Bytes `a` (values 0 to 15) and `c` (16 to 31) of a group; scale `d`, minimum `m`, or the
    /// halves' factors `p` and `q` of `Q6_K`.
    pub(super) fn unpack(self, code: &mut Code, u: u32, r: u32) {
        let name = format!("{u}_{r}");
        match self.format {
            Format::F16 | Format::Q8_0 => return,
            Format::IQ4NL | Format::MXFP4 => {
                for part in ["x", "y", "z", "w"] {
                    code.line(format!("let e{part}{name} = expand(w{name}.{part});"));
                }
                for (bytes, half) in [("a", "x"), ("c", "y")] {
                    let word = |part| format!("e{part}{name}.{half}");
                    let words = ["x", "y", "z", "w"].map(word).join(", ");
                    code.line(format!("let {bytes}{name} = vec4<u32>({words});"));
                }
                return;
            }
            _ => (),
        }
        let (low, high) = match self.format {
            // Bit w of each byte belongs to word w of the low half, bit 4 + w to word w of the high
            // half.
            Format::Q5K => (
                format!(" | ((vec4<u32>(h{name}) << vec4<u32>(4u, 3u, 2u, 1u)) & vec4<u32>(0x10101010u))"),
                format!(" | ((vec4<u32>(h{name}) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x10101010u))"),
            ),
            // Bits 2 w and 2 w + 1 of each byte belong to word w.
            Format::Q6K => {
                let pairs = |half: &str| {
                    let h = format!("h{name}.{half}");
                    format!(" | (vec4<u32>({h} << 4u, {h} << 2u, {h}, {h} >> 2u) & vec4<u32>(0x30303030u))")
                };
                (pairs("x"), pairs("y"))
            }
            _ => (String::new(), String::new()),
        };
        code.line(format!(
            "let a{name} = (w{name} & vec4<u32>(0x0f0f0f0fu)){low};
            let c{name} = ((w{name} >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu)){high};"
        ));
        if self.format.has_min() {
            if r == 0 {
                code.line(format!("let shift{u} = (i{u} & 7u) * 4u;"));
            }
            code.line(format!(
                "let top{name} = f{name}.w >> shift{u};
                let dd{name} = unpack2x16float(f{name}.x);
                let d{name} = dd{name}.x * f32(((f{name}.y >> shift{u}) & 15u) | ((top{name} & 3u) << 4u));
                let m{name} = dd{name}.y * f32(((f{name}.z >> shift{u}) & 15u) | ((top{name} & 12u) << 2u));"
            ));
        }
        if self.format == Format::Q6K {
            self.unpack_factors(code, &name);
        }
    }

    /// Factors of a group from the word `f`: the minimum `m`, or `p` and `q` of `Q6_K`.
    pub(super) fn unpack_factors(self, code: &mut Code, name: &str) {
        match self.format {
            Format::Q4K | Format::Q5K => code.line(format!("let m{name} = bitcast<f32>(f{name});")),
            Format::Q6K => code.line(format!(
                "let p{name} = bitcast<i32>(f{name} << 24u) >> 24u;
                let q{name} = bitcast<i32>(f{name} << 16u) >> 24u;"
            )),
            _ => (),
        }
    }

    /// The sum of 16 integer products.
    pub(super) fn dot16(code: &mut Code) {
        code.line(
            "fn dot16(a: vec4<u32>, x: vec4<u32>) -> i32 {
            return dot4I8Packed(a.x, x.x) + dot4I8Packed(a.y, x.y) + dot4I8Packed(a.z, x.z) + dot4I8Packed(a.w, x.w);
            }",
        );
    }

    /// Scale `s` of activations in 8 bits and the sums of their quants from the words `g`: `t` of
    /// all 32, or `k`, `l` of the halves.
    pub(super) fn unpack_scales(self, code: &mut Code, name: &str) {
        code.line(format!("let s{name} = bitcast<f32>(g{name}.x);"));
        let (first, second) =
            (format!("(bitcast<i32>(g{name}.y << 16u) >> 16u)"), format!("(bitcast<i32>(g{name}.y) >> 16u)"));
        match self.format {
            Format::F16 | Format::Q8_0 | Format::IQ4NL | Format::MXFP4 => (),
            Format::Q6K => code.line(format!("let k{name} = 32 * {first};\nlet l{name} = 32 * {second};")),
            _ => code.line(format!("let t{name} = {first} + {second};")),
        }
    }

    /// Adds a step's products of weights `w` with activations `x` to `sum`.
    pub(super) fn accumulate(self, code: &mut Code, sum: &str, w: &str, x: &str) {
        let (first, second) = (format!("dot16(a{w}, low{x})"), format!("dot16(c{w}, high{x})"));
        code.line(match self.format {
            Format::F16 => format!("{sum} = add8({sum}, w{w}, low{x}, high{x});"),
            Format::Q8_0 | Format::IQ4NL | Format::MXFP4 => {
                format!("{sum} = fma(d{w} * s{x}, f32({first} + {second}), {sum});")
            }
            Format::Q4_0 => format!("{sum} = fma(d{w} * s{x}, f32({first} + {second} - 8 * t{x}), {sum});"),
            Format::Q4K | Format::Q5K => format!(
                "{sum} = fma(d{w} * s{x}, f32({first} + {second}), {sum});
                {sum} = fma(-(m{w} * s{x}), f32(t{x}), {sum});"
            ),
            Format::Q6K => format!(
                "{sum} = fma(d{w} * s{x}, f32(p{w} * ({first} - k{x}) + q{w} * ({second} - l{x})), {sum});"
            ),
        });
    }

    /// A function that gives the four bytes of a word in f16, in the order 0, 2, 1, 3, exactly:
    /// bits of 1024 and a byte are the f16 number `1024 + byte`.
    pub(super) fn bytes(self, code: &mut Code) {
        let (flip, offset) = match self.format {
            // The sign bit turned over: `byte + 128`.
            Format::Q8_0 | Format::IQ4NL | Format::MXFP4 => ("0x64806480u", "1152.0h"),
            Format::Q4_0 => ("0x64006400u", "1032.0h"),
            Format::Q6K => ("0x64006400u", "1056.0h"),
            _ => ("0x64006400u", "1024.0h"),
        };
        code.line(format!(
            "fn bytes(word: u32) -> vec4<f16> {{
            let even = unpack2x16float((word & 0x00ff00ffu) ^ {flip});
            let odd = unpack2x16float(((word >> 8u) & 0x00ff00ffu) ^ {flip});
            return vec4<f16>(vec2<f16>(even), vec2<f16>(odd)) - vec4<f16>({offset});
            }}"
        ));
    }

    /// Factors of [`Weights::halves`] in f16.
    pub(super) fn half_factors(self, code: &mut Code, name: &str) {
        code.line(match self.format {
            Format::Q4K | Format::Q5K => {
                format!("let e{name} = vec4<f16>(f16(d{name}));\nlet n{name} = vec4<f16>(f16(-m{name}));")
            }
            Format::Q6K => {
                format!(
                    "let ea{name} = f16(d{name} * f32(p{name}));\nlet ec{name} = f16(d{name} * f32(q{name}));"
                )
            }
            _ => format!("let e{name} = f16(d{name});"),
        });
    }

    /// Word `word` of a step's 8 words in f16, in the order of [`Weights::bytes`].
    ///
    /// All values of a format are whole multiples of an f16 scale: none is lost below `2^-14`.
    pub(super) fn halves(self, name: &str, word: usize) -> String {
        let half = if word < 4 { "a" } else { "c" };
        let bytes = format!("bytes({half}{name}.{})", ["x", "y", "z", "w"][word % 4]);
        match self.format {
            Format::Q4K | Format::Q5K => format!("fma(e{name}, {bytes}, n{name})"),
            Format::Q6K => format!("{bytes} * e{half}{name}"),
            _ => format!("{bytes} * e{name}"),
        }
    }

    /// The four values of component `part` of half `half` (`a` or `c`) of step `{u}_{r}`.
    pub(super) fn values(self, name: &str, half: &str, part: &str) -> String {
        let bytes = format!("{half}{name}.{part}");
        let (scale, unsigned) = (format!("d{name}"), format!("vec4<f32>(unpack4xU8({bytes}))"));
        match self.format {
            // Two values per word.
            Format::F16 => format!("unpack2x16float(w{name}.{part})"),
            Format::Q8_0 | Format::IQ4NL | Format::MXFP4 => {
                format!("{scale} * vec4<f32>(unpack4xI8({bytes}))")
            }
            Format::Q4_0 => format!("{scale} * ({unsigned} - 8.0)"),
            Format::Q4K | Format::Q5K => {
                format!("fma(vec4<f32>({scale}), {unsigned}, vec4<f32>(-m{name}))")
            }
            Format::Q6K => {
                let factor = if half == "a" { "p" } else { "q" };
                format!("{scale} * f32({factor}{name}) * ({unsigned} - 32.0)")
            }
        }
    }
}

/// The levels of a format by pairs: `expand` gives the levels of a word's low and high nibbles.
fn levels(code: &mut Code, values: &[i8; 16]) {
    let word = |i: usize| {
        let bytes = std::array::from_fn(|j| values[4 * i + j] as u8);
        format!("{:#x}u", u32::from_le_bytes(bytes))
    };
    code.line(format!(
        "var<workgroup> pairs: array<u32, 256>;
        fn level(q: u32) -> u32 {{
        let words = vec4<u32>({}, {}, {}, {});
        return (words[q >> 2u] >> ((q & 3u) * 8u)) & 0xffu;
        }}
        fn expand(w: u32) -> vec2<u32> {{
        let a = pairs[w & 0xffu];
        let b = pairs[(w >> 8u) & 0xffu];
        let c = pairs[(w >> 16u) & 0xffu];
        let d = pairs[w >> 24u];
        let low = (a & 0xffu) | ((b & 0xffu) << 8u) | ((c & 0xffu) << 16u) | ((d & 0xffu) << 24u);
        let high = (a >> 8u) | (b & 0xff00u) | ((c & 0xff00u) << 8u) | ((d & 0xff00u) << 16u);
        return vec2<u32>(low, high);
        }}",
        word(0),
        word(1),
        word(2),
        word(3)
    ));
}

/// Rows of a matrix by index, in f32: `out[b] = scale w[tokens[b]]`. A thread per step.
pub(super) fn gather(code: &mut Code, g: &GatherKernel, target: Target) {
    let GatherKernel { format, rows, cols, scale_bits, first_beyond } = *g;
    let factor = match f32::from_bits(scale_bits) {
        1.0 => String::new(),
        scale => format!(" * {scale:?}"),
    };
    let weights = Weights::new(format, target);
    let planes = weights.declare(code, rows, cols);
    code.binding(planes, "read", "tokens", "u32");
    code.binding(planes + 1, "read_write", "out", "vec4<f32>");
    super::output::entry(code, GATHER_THREADS, None, "");
    weights.prepare(code, GATHER_THREADS);
    code.line(format!(
        "let i0 = group.x * {GATHER_THREADS}u + thread;
        if (i0 < STEPS) {{
        let row0 = {} * STEPS;",
        match first_beyond {
            true => "select(tokens[group.y], 0u, tokens[group.y] >= ROWS)",
            false => "min(tokens[group.y], ROWS - 1u)",
        }
    ));
    weights.load(code, 0, 0);
    weights.unpack(code, 0, 0);
    if format == Format::F16 {
        code.line("let to = (group.y * STEPS + i0) * 2u;");
        for (word, pair) in ["xy", "zw"].iter().enumerate() {
            let half = |part: usize| weights.values("0_0", "w", &pair[part..=part]);
            code.line(format!("out[to + {word}u] = vec4<f32>({}, {}){factor};", half(0), half(1)));
        }
    } else {
        code.line("let to = (group.y * STEPS + i0) * 8u;");
        for (word, (half, part)) in
            ["a", "c"].iter().flat_map(|half| ["x", "y", "z", "w"].map(|part| (half, part))).enumerate()
        {
            let values = weights.values("0_0", half, part);
            code.line(match factor.as_str() {
                "" => format!("out[to + {word}u] = {values};"),
                factor => format!("out[to + {word}u] = ({values}){factor};"),
            });
        }
    }
    code.line("}\n}");
}

/// Threads of a workgroup of [`gather`].
pub(crate) const GATHER_THREADS: u32 = 64;
