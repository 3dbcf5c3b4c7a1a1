//! Models whose layers share keys and values, or have heads of several widths (ADR-0123), or
//! several residual streams (ADR-0135).

use ruvllm::{PrefixCaching, Speculation};

use crate::common::{load, tiny_options};
use crate::hybrid::{agrees, folder, ids, request, with_files};

/// Folders with shared keys and values and embeddings per layer, with heads of one width, with
/// values that are keys, with experts, with several residual streams.
const FORMS: [&str; 5] = ["gemma4_shared", "gemma4_alike", "gemma4_keys", "gemma4_moe", "gemma3n"];

#[test]
fn prefixes_and_drafts_change_no_bit() {
    for name in FORMS {
        let folder = folder(name);
        let folder = folder.path();
        let engine = load(folder.to_owned(), &tiny_options().with_prefixes(PrefixCaching::Memory));
        let prompt = ids(5, 135);
        let answer = agrees(&engine, folder, &request(&prompt).with_max_tokens(40), 0);
        agrees(&engine, folder, &request(&prompt), 134);
        let branch = [&prompt[..75], &ids(7, 60)].concat();
        agrees(&engine, folder, &request(&branch), 75);
        let next = [&prompt[..], &answer, &ids(9, 20)].concat();
        agrees(&engine, folder, &request(&next), 174);
        // A text that repeats itself, for which drafts are found.
        let repeated = ids(4, 12).repeat(6);
        agrees(&engine, folder, &request(&repeated).with_speculation(Speculation::Fixed(4)), 1);
        assert!(engine.step_statistics().drafted_tokens > 0, "{name}");
        // Gemma 4 may leave values out, in any layer.
        let takes_adapters = engine.adapter_base().query_dim > 0;
        assert_eq!(takes_adapters, name == "gemma3n", "{name}: adapters of attention");
    }
}

#[test]
fn prefixes_and_sessions_survive_a_restart() {
    for name in FORMS {
        let (folder, files) = (folder(name), tempfile::tempdir().expect("a folder"));
        let (folder, files) = (folder.path(), files.path());
        let (prompt, talk) = (ids(5, 135), ids(6, 70));
        let engine = with_files(folder, files);
        agrees(&engine, folder, &request(&prompt), 0);
        // The first token of both texts is the same.
        let said = agrees(&engine, folder, &request(&talk).with_max_tokens(40).with_session("talk"), 1);
        engine.sessions().save(&files.join("sessions")).expect("a folder");
        drop(engine);

        let engine = with_files(folder, files);
        agrees(&engine, folder, &request(&prompt), 128);
        assert_eq!(engine.sessions().restore(&files.join("sessions")).expect("a folder"), 1);
        // Sessions are saved by whole blocks.
        let next = [&talk[..], &said, &ids(9, 20)].concat();
        agrees(&engine, folder, &request(&next).with_session("talk"), 96);
    }
}
