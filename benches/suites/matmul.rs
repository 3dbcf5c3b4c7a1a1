//! Matrix products on packed weights for every weight format, from decode (one token, bound by
//! memory) to prefill (many tokens, bound by arithmetic), with a feed-forward shape of a 1
//! G-parameter model.

use ruvllm_benches::{Product, Suite};
use ruvllm_kernels::quant::WeightFormat;

/// Products of few tokens cycle through matrices of this many bytes, so that none is cached, as in
/// a model.
const ROTATION_BYTES: usize = 256 << 20;

fn main() {
    let mut suite = Suite::new();
    let (rows, cols, tokens, rotation): (_, _, &[usize], _) = if suite.is_test() {
        (16, 256, &[1, 3], 0)
    } else {
        (8192, 2048, &[1, 4, 16, 64, 512], ROTATION_BYTES)
    };
    for format in WeightFormat::ALL {
        let mut product = Product::new(format, rows, cols, rotation);
        for &tokens in tokens {
            measure(&mut suite, &mut product, tokens, &format!("{} {rows}x{cols}", format.name()));
        }
    }
    suite.finish();
}

fn measure(suite: &mut Suite, product: &mut Product, tokens: usize, name: &str) {
    let (kernels, pool) = (suite.kernels, suite.pool.clone());
    product.set_tokens(tokens, &kernels, &pool);
    let (arithmetic, work) = (product.arithmetic(), product.work());
    suite.measure_as(arithmetic, "matmul", &format!("{name} tokens={tokens}"), work, || {
        product.run(&kernels, &pool);
    });
}
