//! Folders of the tiny models, copies of them to damage, and what is read from them.

use std::fs;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, TensorInfo};
use ruvllm_models::{Checkpoint, Error, HfFolder};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};
use tempfile::TempDir;

pub(crate) const TINY: [&str; 8] =
    ["llama", "llama_yarn", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"];

pub(crate) fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name)
}

pub(crate) fn folder(name: &str) -> HfFolder {
    HfFolder::open(tiny(name).join("hf")).expect("the folder opens")
}

pub(crate) fn gguf(name: &str, file: &str) -> Gguf {
    Gguf::open(tiny(name).join(file)).expect("the file opens")
}

/// The data of all tensors with their entries, in order.
pub(crate) fn tensors(checkpoint: &dyn Checkpoint) -> Vec<(TensorInfo, Vec<u8>)> {
    let data = |info: &TensorInfo| checkpoint.data(info).expect("its data").as_ref().to_vec();
    checkpoint.tensors().map(|info| (info.clone(), data(info))).collect()
}

/// Names, shapes and data agree; offsets and the order do not count.
#[track_caller]
pub(crate) fn assert_same_tensors(found: &dyn Checkpoint, expected: &dyn Checkpoint) {
    let (mut found, mut expected) = (tensors(found), tensors(expected));
    let by_name = |a: &(TensorInfo, Vec<u8>), b: &(TensorInfo, Vec<u8>)| a.0.name.cmp(&b.0.name);
    found.sort_by(by_name);
    expected.sort_by(by_name);
    let names =
        |list: &[(TensorInfo, Vec<u8>)]| list.iter().map(|(info, _)| info.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    for ((found, data), (expected, reference)) in found.iter().zip(&expected) {
        assert_eq!(
            (&found.dims, found.tensor_type),
            (&expected.dims, expected.tensor_type),
            "{}",
            found.name
        );
        assert!(data == reference, "{}: other bytes", found.name);
    }
}

/// A copy of a tiny model's folder.
pub(crate) struct Copy(TempDir);

impl Copy {
    pub(crate) fn of(name: &str) -> Self {
        Self::of_folder(&tiny(name).join("hf"))
    }

    /// A copy of a folder and the folders in it.
    pub(crate) fn of_folder(folder: &Path) -> Self {
        let copy = Self(tempfile::tempdir().expect("a folder"));
        copy_files(folder, copy.0.path());
        copy
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    pub(crate) fn open(&self) -> Result<HfFolder, Error> {
        HfFolder::open(self.0.path())
    }

    /// Rewrites a JSON file.
    pub(crate) fn edit(&self, file: &str, change: impl FnOnce(&mut Map<String, Value>)) {
        let path = self.path(file);
        let mut map: Map<String, Value> =
            serde_json::from_slice(&fs::read(&path).expect("the file")).expect("an object");
        change(&mut map);
        fs::write(path, serde_json::to_vec(&map).expect("JSON")).expect("written");
    }

    /// Sets a field of `config.json`.
    pub(crate) fn set(&self, key: &str, value: Value) {
        self.edit("config.json", |map| drop(map.insert(key.to_owned(), value)));
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).expect("removed");
    }

    /// The tensors of the weight file, in the order of their data.
    pub(crate) fn weights(&self) -> Vec<Weight> {
        let bytes = fs::read(self.path("model.safetensors")).expect("the weights");
        let file = SafeTensors::deserialize(&bytes).expect("a valid file");
        let weight = |(name, view): (&str, TensorView<'_>)| Weight {
            name: name.to_owned(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            data: view.data().to_vec(),
        };
        file.iter().map(weight).collect()
    }

    /// Writes a weight file.
    pub(crate) fn write(&self, file: &str, weights: &[Weight]) {
        let views = weights.iter().map(|weight| {
            let view = TensorView::new(weight.dtype, weight.shape.clone(), &weight.data).expect("a tensor");
            (weight.name.as_str(), view)
        });
        fs::write(self.path(file), safetensors::serialize(views, None).expect("a file")).expect("written");
    }
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("the folder") {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            fs::create_dir(&to).expect("a folder");
            copy_files(&from, &to);
        } else {
            fs::copy(from, to).expect("a copy");
        }
    }
}

/// A tensor of a weight file.
#[derive(Clone)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}
