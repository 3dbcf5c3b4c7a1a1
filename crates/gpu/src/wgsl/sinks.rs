//! Attention sinks: scores without a value, added to a softmax at its end.

use super::Code;

/// The buffer of the sinks, and a function for a softmax of this maximum and sum: the factor of its
/// sums, and the sum with the sink.
pub(super) fn declare(code: &mut Code, binding: u32) {
    code.binding(binding, "read", "sinks", "f32");
    code.line(
        "fn with_sink(peak: f32, sum: f32, sink: f32) -> vec2<f32> {
        let top = max(peak, sink);
        let keep = exp(max(peak - top, -80.0));
        return vec2<f32>(keep, fma(sum, keep, exp(max(sink - top, -80.0))));
        }",
    );
}

/// Divides `value` by the sum of the softmax, with the sink of `head` if there are sinks.
pub(super) fn divide(code: &mut Code, sinks: bool, peak: &str, sum: &str, head: &str) {
    if sinks {
        code.line(format!(
            "let shares = with_sink({peak}, {sum}, sinks[{head}]);
            value = value * shares.x / shares.y;"
        ));
    } else {
        code.line(format!("value /= {sum};"));
    }
}
