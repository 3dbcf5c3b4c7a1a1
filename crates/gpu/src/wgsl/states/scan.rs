//! Selective scan (Mamba-2): a workgroup per columns of a head's state, row by row.

use super::matrix::{MatrixTile, add_product};
use super::{Operand, SOFTPLUS, begin_ahead, begin_rows, read_ahead};
use crate::state_keys::SelectiveScanKernel;
use crate::wgsl::Code;
use crate::wgsl::output::entry;

/// Operands of a row.
fn operands(tile: &MatrixTile, row: &str) -> Vec<Operand> {
    let at = format!("{row} * CHANNELS");
    let mut operands = Vec::new();
    for r in 0..tile.own {
        let word = |offset: &str| tile.word(r, "x", &format!("{at} + {offset} + weight_word"));
        operands.push((format!("taken{r}"), "vec4<f32>", word("INPUTS")));
        operands.push((format!("read{r}"), "vec4<f32>", word("OUTPUTS")));
    }
    operands.push(("input".to_owned(), "f32", format!("x[{at} + input_word][column % 4u]")));
    operands.push(("time".to_owned(), "f32", format!("steps[{row} * HEADS + head]")));
    operands
}

pub(super) fn emit(code: &mut Code, k: &SelectiveScanKernel) {
    let tile = MatrixTile::new(k.state_dim, k.head_dim);
    let threads = tile.threads();
    code.binding(0, "read", "x", "vec4<f32>");
    code.binding(1, "read", "steps", "f32");
    code.binding(2, "read", "heads", "f32");
    tile.declare(code, (k.heads, 3));
    code.line(format!(
        "const CHANNELS: u32 = {}u; // 4-value words per row
        const INPUTS: u32 = {}u; // offset of the weights of inputs in a row
        const OUTPUTS: u32 = {}u; // of outputs
        // Of the present row and the one before, whose sums may still be read.
        var<workgroup> results: array<f32, {}>;",
        k.channels() / 4,
        k.heads * k.head_dim / 4,
        (k.heads * k.head_dim + k.groups * k.state_dim) / 4,
        2 * threads
    ));
    code.line(SOFTPLUS);
    entry(code, threads, None, "");
    tile.load(code);
    code.line(format!(
        "let weight_word = head / {}u * WORDS;
        let input_word = (head * WIDTH + min(column, WIDTH - 1u)) / 4u;
        let bias = heads[head];
        let factor = heads[HEADS + head];
        let skip = heads[2u * HEADS + head];",
        k.heads / k.groups
    ));
    begin_ahead(code, &operands(&tile, "span.z"));
    begin_rows(code, "0u", "rows");
    read_ahead(code, &operands(&tile, "next"));
    code.line(
        "let step = softplus(time + bias);
        let decay = exp(factor * step);
        let update = vec4<f32>(step * input);
        var result = 0.0;",
    );
    for r in 0..tile.own {
        let (state, weight) = (format!("state{r}"), format!("read{r}"));
        code.line(format!(
            "{state} = fma(taken{r}, update, decay * {state});
            result = {};",
            add_product(&state, &weight, "result")
        ));
    }
    code.line(format!(
        "let place = (i & 1u) * {threads}u;
        results[place + thread] = result;
        workgroupBarrier();
        if (lane == 0u && is_own) {{"
    ));
    tile.add_lanes(code, "result", "results", "place + thread");
    code.line("out[(row * HEADS + head) * WIDTH + column] = fma(skip, input, result);\n}");
    tile.end_rows(code);
    code.line("}");
}
