//! The committed figures match the tables.

use std::fs;

use xtask::Workspace;

#[test]
fn committed_figures_are_what_the_tables_say() {
    let workspace = Workspace::find().expect("the workspace");
    let figures = ruvllm_tools::plots::figures(&workspace).expect("the figures");
    for (path, svg) in &figures {
        let committed = fs::read_to_string(workspace.path(path)).unwrap_or_default();
        assert!(committed == *svg, "{path} is not what its table says: run `cargo xtask plots`");
    }
    let files = fs::read_dir(workspace.path("docs/plots")).expect("the folder").count();
    assert_eq!(files, figures.len(), "docs/plots holds a file that nothing draws");
}
