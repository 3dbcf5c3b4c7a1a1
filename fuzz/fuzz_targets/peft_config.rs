//! Opens a PEFT folder with any bytes as its configuration, and two pairs of factors.

#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ruvllm_adapters::LoraFile;
use ruvllm_fuzz::FOLDER;

/// Writes the weights to the folder once: rank 1, one value in each factor.
static WEIGHTS: LazyLock<()> = LazyLock::new(|| {
    let names = [
        ("0.self_attn.q_proj", "A"),
        ("0.self_attn.q_proj", "B"),
        ("1.mlp.up_proj", "A"),
        ("1.mlp.up_proj", "B"),
    ];
    let tensor = |(index, (module, which)): (usize, &(&str, &str))| {
        let (start, end) = (4 * index, 4 * index + 4);
        format!(
            r#""base_model.model.model.layers.{module}.lora_{which}.weight":{{"dtype":"F32","shape":[1,1],"data_offsets":[{start},{end}]}}"#
        )
    };
    let tensors: Vec<String> = names.iter().enumerate().map(tensor).collect();
    let header = format!("{{{}}}", tensors.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend([1.0f32; 4].iter().flat_map(|value| value.to_le_bytes()));
    fs::write(FOLDER.join("adapter_model.safetensors"), file).expect("written");
});

fuzz_target!(|config: &[u8]| {
    LazyLock::force(&WEIGHTS);
    fs::write(FOLDER.join("adapter_config.json"), config).expect("written");
    let Ok(file) = LoraFile::open(&FOLDER) else { return };
    assert_eq!(file.updates().len(), 2);
    assert!(file.updates().iter().all(|update| update.rank == 1 && update.scale.is_finite()));
});
