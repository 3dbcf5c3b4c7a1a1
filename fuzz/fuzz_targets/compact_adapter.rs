//! Opens compact adapter files with damage that keeps their checksums right, and loads them.
//!
//! The first byte chooses the kind of input: any bytes, or a file of a small model in which the
//! rest of the input replaces bytes of header or factors before lengths and checksums are set.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use ruvllm_adapters::{AdapterStore, BaseModel, CompactFile, FactorFormat, LoraFile, Part};
use ruvllm_fuzz::FOLDER;
use ruvllm_memory::{PagePool, PoolConfig, Request};

/// Bytes in front of the fields: magic, version, length and CRC-32 of the header.
const PREFIX_BYTES: usize = 20;

/// Bytes of a section's entry: CRC-32, flag, two digests.
const SECTION_BYTES: usize = 4 + 1 + 64;

static BASE: LazyLock<Arc<BaseModel>> = LazyLock::new(|| {
    Arc::new(BaseModel {
        architecture: "llama".to_owned(),
        n_layers: 2,
        model_dim: 6,
        query_dim: 8,
        kv_dim: 4,
        head_dim: 4,
        ffn_dim: 10,
        vocab_size: 12,
        interleaved_heads: true,
        joint_attention: false,
        joint_feed_forward: false,
    })
});

static POOL: LazyLock<PagePool> = LazyLock::new(|| {
    let config = PoolConfig { page_bytes: 512 << 10, ..PoolConfig::new(4 << 20) };
    PagePool::new(config).expect("a pool")
});

/// A sound file, and the length of its header.
static SOUND: LazyLock<(Vec<u8>, usize)> = LazyLock::new(|| {
    let folder = FOLDER.join("source");
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1}"#;
    std::fs::write(folder.join("adapter_config.json"), config).expect("a file");
    // Four tensors of zeros: A and B of the queries of both layers.
    let mut entries = Vec::new();
    let mut end = 0;
    for layer in 0..2 {
        for (which, shape, bytes) in [("A", "1,6", 24), ("B", "8,1", 32)] {
            let name = format!("model.layers.{layer}.self_attn.q_proj.lora_{which}.weight");
            let begin = end;
            end += bytes;
            entries.push(format!(
                r#""{name}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#
            ));
        }
    }
    let header = format!("{{{}}}", entries.join(","));
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; end]].concat();
    std::fs::write(folder.join("adapter_model.safetensors"), file).expect("a file");
    let source = LoraFile::open(&folder).expect("an adapter");
    let store = AdapterStore::new(&*FOLDER);
    let parts = [Part { file: &source, scale: 1.0 }];
    let stored = store.add("sound", &BASE, &parts, "source", true).expect("an adapter");
    let bytes = std::fs::read(stored.file.path()).expect("a file");
    let header = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
    (bytes, header)
});

fuzz_target!(|input: &[u8]| {
    let Some((&kind, rest)) = input.split_first() else { return };
    let (sound, header) = &*SOUND;
    let bytes = match kind % 4 {
        0 => rest.to_vec(),
        1 => [&b"ruvlora\0"[..], rest].concat(),
        // Records of place and bytes, in the header or anywhere.
        kind => {
            let mut bytes = sound.clone();
            let len = if kind == 2 { *header } else { bytes.len() };
            for record in rest.chunks_exact(6) {
                let at = PREFIX_BYTES + usize::from(u16::from_le_bytes([record[0], record[1]]));
                let at = at % len;
                for (byte, value) in bytes[at..len].iter_mut().zip(&record[2..]) {
                    *byte = *value;
                }
            }
            bytes[..PREFIX_BYTES].copy_from_slice(&sound[..PREFIX_BYTES]);
            set_checksums(&mut bytes, *header);
            bytes
        }
    };
    let path = FOLDER.join("input.ruvlora");
    std::fs::write(&path, &bytes).expect("a file");
    let Ok(file) = CompactFile::open(&path) else { return };
    let _ = (file.verify(), file.base().to_string(), LoraFile::open(&path));
    let base = Arc::new(file.base().clone());
    for format in [FactorFormat::F16, FactorFormat::I8] {
        assert!(file.bytes(format).is_some_and(|expected| expected <= bytes.len()));
        if let Ok(adapter) = file.load(&base, format, &POOL, &Request::default()) {
            assert_eq!(Some(adapter.bytes()), file.bytes(format));
            for at in adapter.layout().sites() {
                let factors = adapter.at(at.layer, at.site).expect("a listed site");
                assert!(factors.a().is_finite());
            }
        }
    }
});

/// Sets the CRC-32 of the sections, where the header has its former length, and of the header.
fn set_checksums(bytes: &mut [u8], header: usize) {
    let (f16, i8) = sections(header);
    for (index, section) in [f16, i8].into_iter().enumerate() {
        let crc = crc32fast::hash(&bytes[section]);
        let at = PREFIX_BYTES + index * SECTION_BYTES;
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    bytes[16..PREFIX_BYTES].fill(0);
    let crc = crc32fast::hash(&bytes[..header]);
    bytes[16..PREFIX_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// Places of the factors in F16 and in I8 in the sound file.
fn sections(header: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    static BYTES: LazyLock<[usize; 2]> = LazyLock::new(|| {
        let file = CompactFile::open(&FOLDER.join("sound.ruvlora")).expect("an adapter");
        [FactorFormat::F16, FactorFormat::I8].map(|format| file.bytes(format).expect("a section"))
    });
    let [f16, i8] = *BYTES;
    let second = (header + f16).next_multiple_of(64);
    (header..header + f16, second..second + i8)
}
