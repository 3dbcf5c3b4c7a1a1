//! Opens any bytes as a GGUF file, as a slice and as a stream, and reads all of its contents.

#![no_main]

use std::{hint::black_box, io::Cursor};

use gguf_rs_lite::{Gguf, Header, Reader, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let parsed = Header::parse(file);
    let streamed = Reader::new(Cursor::new(file));
    let (header, mut reader) = match (parsed, streamed) {
        (Ok(header), Ok(reader)) => (header, reader),
        (Err(a), Err(b)) => {
            assert_eq!(a.to_string(), b.to_string(), "the readers disagree about the fault");
            return;
        }
        (a, b) => panic!("the readers disagree: {:?}, {:?}", a.map(|_| ()), b.map(|_| ())),
    };

    for (key, value) in header.metadata.iter() {
        assert!(header.metadata.contains(key));
        black_box(value.as_integer());
        let _ = black_box(header.metadata.get_u64s(key));
        let _ = black_box(header.metadata.get_f32(key));
    }
    if let Ok(model) = Gguf::from_owner(file.to_vec()) {
        let mut streamed = Vec::new();
        for tensor in model.tensors() {
            let data = model.data(tensor).expect("a listed tensor has data");
            assert_eq!(data.len() as u64, tensor.bytes());
            reader.read(tensor, &mut streamed).expect("a listed tensor can be read");
            assert_eq!(data.as_ref(), streamed);
        }
    }

    // A file that was read can be written and reads back equal.
    let mut writer = Writer::new(Vec::new(), &header.metadata, header.tensors.iter().cloned())
        .expect("whatever is read can be written");
    let mut data = Vec::new();
    for tensor in &header.tensors {
        reader.read(tensor, &mut data).expect("a listed tensor can be read");
        writer.write_tensor(tensor, &data).expect("tensors come in the declared order");
    }
    let written = writer.finish().expect("all tensors have their data");
    let again = Header::parse(&written).expect("whatever is written can be read");
    assert_eq!(format!("{:?}", again.metadata), format!("{:?}", header.metadata));
    assert_eq!(again.tensors.len(), header.tensors.len());
});
