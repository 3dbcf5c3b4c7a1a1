//! Gated delta rule: a workgroup per columns of a head's state, row by row.
//!
//! Per row two sums over the rows of the state: of the state times the key, beside the squares of
//! key and query, and of the corrected state times the query.

use super::matrix::{MatrixTile, add_product};
use super::{Operand, SIGMOID, SOFTPLUS, begin_ahead, begin_rows, read_ahead};
use crate::state_keys::DeltaRuleKernel;
use crate::wgsl::Code;
use crate::wgsl::output::entry;

/// Added to the sum of squares of a query or key. Source: the reference implementation of Qwen 3.5.
const UNIT_EPS: f32 = 1e-6;

pub(super) fn emit(code: &mut Code, k: &DeltaRuleKernel) {
    let tile = MatrixTile::new(k.key_dim, k.value_dim);
    code.binding(0, "read", "x", "vec4<f32>");
    code.binding(1, "read", "rates", "f32");
    code.binding(2, "read", "heads", "f32");
    tile.declare(code, (k.value_heads, 3));
    code.line(format!(
        "const CHANNELS: u32 = {}u; // 4-value words per row
        const KEYS: u32 = {}u; // offset of the keys in a row
        const VALUES: u32 = {}u;
        var<workgroup> sums: array<vec3<f32>, {threads}>; // of the state times the key, and of squares
        var<workgroup> results: array<f32, {threads}>;",
        k.channels() / 4,
        k.key_heads * k.key_dim / 4,
        2 * k.key_heads * k.key_dim / 4,
        threads = tile.threads()
    ));
    code.line(SOFTPLUS);
    code.line(SIGMOID);
    entry(code, tile.threads(), None, "");
    tile.load(code);
    before_rows(code, k, &tile);
    begin_rows(code, "0u", "rows");
    row(code, k, &tile);
    tile.end_rows(code);
    code.line("}");
}

/// Operands of a row.
fn operands(tile: &MatrixTile, row: &str) -> Vec<Operand> {
    let at = format!("{row} * CHANNELS");
    let mut operands = Vec::new();
    for r in 0..tile.own {
        let word = |offset: &str| tile.word(r, "x", &format!("{at} + {offset}"));
        operands.push((format!("query{r}"), "vec4<f32>", word("key_word")));
        operands.push((format!("key{r}"), "vec4<f32>", word("KEYS + key_word")));
    }
    operands.push(("value".to_owned(), "f32", format!("x[{at} + value_word][column % 4u]")));
    operands.push(("step".to_owned(), "f32", format!("rates[{row} * 2u * HEADS + head]")));
    operands.push(("gate".to_owned(), "f32", format!("rates[({row} * 2u + 1u) * HEADS + head]")));
    operands
}

/// Places and factors that are the same for all rows, and the operands of the first one.
fn before_rows(code: &mut Code, k: &DeltaRuleKernel, tile: &MatrixTile) {
    let per_key = k.value_heads / k.key_heads;
    let key_head = match k.grouped {
        true => format!("head / {per_key}u"),
        false => format!("head % {}u", k.key_heads),
    };
    code.line(format!(
        "let key_word = {key_head} * WORDS;
        let value_word = VALUES + (head * WIDTH + min(column, WIDTH - 1u)) / 4u;
        let bias = heads[head];
        let factor = heads[HEADS + head];"
    ));
    begin_ahead(code, &operands(tile, "span.z"));
}

/// A row, within the loops over rows.
fn row(code: &mut Code, k: &DeltaRuleKernel, tile: &MatrixTile) {
    read_ahead(code, &operands(tile, "next"));
    code.line(
        "let decay = exp(factor * softplus(step + bias));
        let rate = sigmoid(gate);
        var sum = vec3<f32>();",
    );
    for r in 0..tile.own {
        let (state, query, key) = (format!("state{r}"), format!("query{r}"), format!("key{r}"));
        code.line(format!(
            "sum.x = {};\nsum.y = {};\nsum.z = {};",
            add_product(&state, &key, "sum.x"),
            add_product(&key, &key, "sum.y"),
            add_product(&query, &query, "sum.z")
        ));
    }
    code.line(
        "sums[thread] = sum;
        workgroupBarrier();
        let place = thread % COLUMNS;
        var total = sums[place];",
    );
    tile.add_lanes(code, "total", "sums", "place");
    code.line(format!(
        "let unit = inverseSqrt(total.y + {UNIT_EPS:?});
        let scale = inverseSqrt(total.z + {UNIT_EPS:?}) * {:?};
        let correction = vec4<f32>(rate * fma(-decay * unit, total.x, value) * unit);
        var result = 0.0;",
        1.0 / (k.key_dim as f32).sqrt()
    ));
    for r in 0..tile.own {
        let (state, query) = (format!("state{r}"), format!("query{r}"));
        code.line(format!(
            "{state} = fma(key{r}, correction, decay * {state});\nresult = {};",
            add_product(&state, &query, "result")
        ));
    }
    code.line(
        "results[thread] = result;
        workgroupBarrier();
        if (lane == 0u && is_own) {",
    );
    tile.add_lanes(code, "result", "results", "thread");
    code.line(
        "out[(row * HEADS + head) * WIDTH + column] = result * scale;
        }",
    );
}
