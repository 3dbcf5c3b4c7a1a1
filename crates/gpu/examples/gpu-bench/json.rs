//! Figures as JSON.

use ruvllm_gpu::{AdapterInfo, Format, self_test};

use crate::measure::Figure;

/// A document under construction.
pub(crate) struct Json {
    head: String,
    checks: Vec<String>,
    products: Vec<String>,
    operations: Vec<String>,
}

/// Figures of one product.
pub(crate) struct ProductFigures {
    /// Weight format.
    pub(crate) format: Format,
    /// Weight rows.
    pub(crate) rows: u32,
    /// Weight columns.
    pub(crate) cols: u32,
    /// Activation rows.
    pub(crate) batch: u32,
    /// Seconds per launch.
    pub(crate) seconds: Figure,
    /// GB/s of weights.
    pub(crate) rate: Figure,
}

impl Json {
    /// A document about one device.
    pub(crate) fn new(info: &AdapterInfo) -> Self {
        let head = format!("\"device\": {:?}, \"driver\": {:?}", info.name, info.driver);
        Self { head, checks: Vec::new(), products: Vec::new(), operations: Vec::new() }
    }

    /// Adds a number at the top.
    pub(crate) fn number(&mut self, name: &str, value: f64) {
        self.head += &format!(", {name:?}: {value:.1}");
    }

    /// Adds a check.
    pub(crate) fn check(&mut self, check: &self_test::Check) {
        let worst = if check.worst.is_finite() { format!("{:.4}", check.worst) } else { "null".to_owned() };
        let passed = check.passed();
        self.checks.push(format!("{{\"name\": {:?}, \"worst\": {worst}, \"passed\": {passed}}}", check.name));
    }

    /// Adds a product.
    pub(crate) fn product(&mut self, p: &ProductFigures) {
        self.products.push(format!(
            "{{\"format\": {:?}, \"rows\": {}, \"cols\": {}, \"batch\": {}, \"us\": {}, \"gb_per_s\": {}}}",
            p.format.name(),
            p.rows,
            p.cols,
            p.batch,
            figure(p.seconds.map(|s| s * 1e6)),
            figure(p.rate)
        ));
    }

    /// Adds an operation.
    pub(crate) fn operation(&mut self, name: &str, micros: Figure) {
        self.operations.push(format!("{{\"name\": {name:?}, \"us\": {}}}", figure(micros)));
    }

    /// The document.
    pub(crate) fn finish(self) -> String {
        let list = |items: Vec<String>| items.join(",\n    ");
        format!(
            "{{\n  {},\n  \"checks\": [\n    {}\n  ],\n  \"products\": [\n    {}\n  ],\n  \"operations\": [\n    {}\n  ]\n}}\n",
            self.head,
            list(self.checks),
            list(self.products),
            list(self.operations)
        )
    }
}

fn figure(f: Figure) -> String {
    format!("{{\"median\": {:.3}, \"low\": {:.3}, \"high\": {:.3}}}", f.median, f.low, f.high)
}
