//! Layers of one part, and networks and experts without a gate (ADR-0152).

use std::path::Path;
use std::sync::Arc;

use ruvllm::{AdapterSource, Engine, EngineOptions, Error, FactorFormat, GpuBackend, GpuOptions};
use ruvllm::{InferenceBackend, KvPolicy, TokenId};
use ruvllm_adapters::Site;
use ruvllm_testkit::model_data;
use safetensors::SafeTensors;

use crate::adapter_sites::{of_site, sites};
use crate::families::{form, form_options};
use crate::support::{chain, error, gpu_with, tolerance};

/// Feed-forward networks, and experts with a shared one.
const ONE_PART: [&str; 2] = ["nemotron_h", "nemotron_h_moe"];

fn tokens(n: usize) -> Vec<TokenId> {
    (0..n).map(|i| (i * 37 % 69 + 3) as TokenId).collect()
}

fn backend(name: &str, folder: &Path) -> Option<(GpuBackend, Engine)> {
    let options = GpuOptions { adapter_format: FactorFormat::F32, ..form_options(folder) };
    let backend = gpu_with(form(name), &options)?;
    let engine = EngineOptions::default()
        .with_threads(2)
        .with_kv("f32".parse::<KvPolicy>().expect("a policy"))
        .with_tokenizer(options.tokenizer);
    Some((backend, Engine::load(&form(name).into(), &engine, &mut |_| ()).expect("the engine loads it")))
}

/// Updates of logits and of the final state are added as on the CPU.
#[test]
fn adapters_of_models_of_one_part_have_the_logits_of_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ONE_PART {
        let Some((mut backend, mut engine)) = backend(name, folder.path()) else { return };
        let base = Arc::clone(engine.adapter_base());
        assert_eq!((base.query_dim, base.ffn_dim), (0, 0), "{name}");
        let (prompt, positions) = (tokens(30), [0, 11, 29]);
        let without = engine.logits(&prompt, &positions).expect("logits");
        let of_none = |site: Site| matches!(site, Site::Logits | Site::FinalHidden);
        for site in sites(&base).into_iter().filter(|of| of_none(of.site)) {
            let of = of_site(&base, 0, &site);
            engine.set_adapters(std::slice::from_ref(&of)).expect("default adapters");
            backend.set_adapters(&[of]).expect("default adapters");
            let expected = engine.logits(&prompt, &positions).expect("logits");
            let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
            let found = backend.logits(&prompt, &positions).expect("logits");
            let [error, change] = [&found, &without].map(|found| error(found, &expected));
            println!("{name}, {:?}: {error:.1e}, {change:.1e} without", site.site);
            assert!(error <= tolerance() && change > 4.0 * tolerance(), "{name}: {error}, {change} without");
        }
    }
}

/// A PEFT folder with the updates of some modules of the tiny Llama.
fn of_modules(part: &str, folder: &Path) {
    let source = model_data("lora").join("r4_all");
    let bytes = std::fs::read(source.join("adapter_model.safetensors")).expect("the tensors");
    let all = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let some = all.iter().filter(|(name, _)| name.contains(part));
    safetensors::serialize_to_file(some, None, &folder.join("adapter_model.safetensors")).expect("written");
    std::fs::copy(source.join("adapter_config.json"), folder.join("adapter_config.json")).expect("copied");
}

/// One error with the name of the module, as on the CPU.
#[test]
fn adapters_of_networks_without_a_gate_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ONE_PART {
        let Some((backend, engine)) = backend(name, folder.path()) else { return };
        for part in ["up_proj", "down_proj", "q_proj"] {
            let path = tempfile::tempdir().expect("a folder");
            of_modules(part, path.path());
            let sources = [AdapterSource { path: path.path().to_owned(), scale: 1.0 }];
            let adapters = backend.backend_adapters().expect("the GPU has adapters");
            let error = adapters.load(&sources).expect_err("no module of the model");
            let on_cpu = engine.load_adapter(&sources).expect_err("no module of the model");
            assert!(matches!(error, Error::Adapter { .. }), "{error:?}");
            assert!(chain(&error).contains(part), "{}", chain(&error));
            assert_eq!(chain(&error), chain(&on_cpu));
        }
    }
}
