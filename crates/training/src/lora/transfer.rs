//! Factors from adapter files, and to them.

use std::path::Path;
use std::sync::Arc;

use ruvllm_adapters::export::{AdapterFormat, FactorType, NewAdapter, NewUpdate};
use ruvllm_adapters::{BaseModel, LoraFile, Projection};

use super::{Lora, LoraConfig, SiteModules};
use crate::error::{Error, Result};

impl Lora {
    /// Factors of an adapter file, to be trained further.
    ///
    /// # Errors
    /// A file of another model; [`Error::Continue`] for modules outside the layers, for modules of
    /// different rank or scale, and where the layers do not all have the same modules.
    pub fn from_file(base: &Arc<BaseModel>, file: &LoraFile) -> Result<Self> {
        let fault =
            |reason: &str| Error::Continue { path: file.path().to_owned(), reason: reason.to_owned() };
        let updates = file.updates();
        let first = updates.first().ok_or_else(|| fault("it has no factors"))?;
        let (rank, scale) = (first.rank, first.scale);
        if updates.iter().any(|update| (update.rank, update.scale) != (rank, scale)) {
            return Err(fault("its modules differ in rank or scale"));
        }
        let (mut targets, mut layers) = (Vec::new(), Vec::new());
        let mut read = Vec::with_capacity(updates.len());
        for update in updates {
            let (projection, a, b) = file.factors(base, update)?;
            if matches!(projection, Projection::Logits | Projection::FinalHidden) {
                return Err(fault("it changes the logits, which cannot be trained"));
            }
            if !targets.contains(&projection) {
                targets.push(projection);
            }
            if !layers.contains(&update.layer) {
                layers.push(update.layer);
            }
            read.push(((update.layer, projection), a, b));
        }
        layers.sort_unstable();
        targets.sort_unstable();
        if read.len() != targets.len() * layers.len() {
            return Err(fault("its layers have different modules"));
        }
        let alpha = scale * rank as f32;
        let config = LoraConfig { rank, alpha, targets, layers: Some(layers), seed: 0 };
        let mut lora = Self::new(base, &config)?;
        for ((layer, projection), a, b) in read {
            lora.set_in_model_order(projection, layer, &a, &b);
        }
        Ok(lora)
    }

    /// Sets the factors of a module: `A`, `[rank, inputs]`, and `B`, `[outputs, rank]`, its rows in
    /// the order of PEFT.
    ///
    /// # Errors
    /// [`Error::Setting`] for a module that is not trained, [`Error::Length`] for other sizes.
    pub fn set_module(&mut self, projection: Projection, layer: usize, a: &[f32], b: &[f32]) -> Result<()> {
        let found = self.sites.iter().find(|site| site.layer == layer && site.modules.contains(&projection));
        let Some(site) = found else {
            let value = format!("{projection} of layer {layer}");
            return Err(Error::Setting { name: "module", value, range: "one of the adapter" });
        };
        let rows = self.base.target_rows(projection).last().map_or(0, |(_, rows)| rows.end);
        for (what, expected, found) in
            [("A", self.rank * site.inputs, a.len()), ("B", self.rank * rows, b.len())]
        {
            if expected != found {
                return Err(Error::Length { what, expected, found });
            }
        }
        // The model's row of each row of PEFT, by the order of row numbers, which f32 holds
        // exactly.
        let numbers = (0..rows).map(|row| row as f32).collect();
        let order = AdapterFormat::Peft.rows(&self.base, projection, 1, numbers);
        let mut model_b = vec![0.0; b.len()];
        for (row, values) in order.iter().zip(b.chunks_exact(self.rank)) {
            model_b[*row as usize * self.rank..][..self.rank].copy_from_slice(values);
        }
        self.set_in_model_order(projection, layer, a, &model_b);
        Ok(())
    }

    /// Sets the factors of a module of the adapter, whose sizes are right.
    fn set_in_model_order(&mut self, projection: Projection, layer: usize, a: &[f32], b: &[f32]) {
        let Self { sites, values, rank, .. } = self;
        for site in sites.iter().filter(|site| site.layer == layer) {
            let Some(module) = site.modules.iter().position(|&other| other == projection) else { continue };
            values[site.a_of(module)].copy_from_slice(a);
            for block in site.blocks.iter().filter(|block| block.module == module) {
                let width = block.rows.len();
                let out = &mut values[block.values.clone()];
                for (at, row) in block.rows.clone().enumerate() {
                    for i in 0..*rank {
                        out[i * width + at] = b[row * *rank + i];
                    }
                }
            }
        }
    }

    /// Writes the factors as a PEFT folder.
    ///
    /// `alpha / rank` is multiplied into `B`. `replace` allows the folder to be that of an adapter
    /// already.
    ///
    /// # Errors
    /// As [`NewAdapter::write`]; [`Error::NotFinite`](ruvllm_adapters::Error::NotFinite) is not
    /// among them: factors beyond the range of `factors` become infinite.
    pub fn write(&self, path: &Path, factors: FactorType, replace: bool) -> Result<()> {
        Ok(self.to_adapter(AdapterFormat::Peft, factors)?.write(path, replace)?)
    }

    /// The factors as an adapter that can be written in a format.
    ///
    /// # Errors
    /// As [`NewAdapter::new`].
    pub fn to_adapter(&self, format: AdapterFormat, factors: FactorType) -> Result<NewAdapter> {
        let updates = self
            .sites
            .iter()
            .flat_map(|site| (0..site.modules.len()).map(move |module| self.update(site, module, format)))
            .collect();
        Ok(NewAdapter::new(format, Some(self.base.architecture.clone()), factors, updates)?)
    }

    fn update(&self, site: &SiteModules, module: usize, format: AdapterFormat) -> NewUpdate {
        let (rank, projection) = (self.rank, site.modules[module]);
        let blocks = || site.blocks.iter().filter(|block| block.module == module);
        let outputs: usize = blocks().map(|block| block.rows.len()).sum();
        let mut b = vec![0.0; outputs * rank];
        for block in blocks() {
            let values = &self.values[block.values.clone()];
            for (at, row) in block.rows.clone().enumerate() {
                for i in 0..rank {
                    b[row * rank + i] = self.scale * values[i * block.rows.len() + at];
                }
            }
        }
        NewUpdate {
            projection,
            layer: site.layer,
            peft_name: None,
            rank,
            inputs: site.inputs,
            outputs,
            a: self.values[site.a_of(module)].to_vec(),
            b: format.rows(&self.base, projection, rank, b),
        }
    }
}
