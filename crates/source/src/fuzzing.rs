//! Functions through which the fuzz targets in `fuzz/` call private functions.

use std::sync::Arc;

use alustan_api::WrapperName;

use crate::{
    closure::{Closure, ContextLimits},
    error::Error,
    module,
    tree::Tree,
};

/// Entries of the repository in addition to the fuzzed file, as in the output of `git ls-tree`: a module, a symbolic link and a submodule.
const AROUND: &str =
    "100644 blob b 1\tb/main.tf\x00120000 blob l 1\tlink\x00160000 commit s -\tsub\0";

/// Reads `text` as the file `name` (`main.tf`, `a.tf.json`, `terragrunt.hcl`) of a module in folder `a`, and follows its module calls. Returns the number of files that
/// the module needs.
///
/// # Errors
/// [`Error`] if the module is refused.
pub fn closure(name: &str, text: &[u8]) -> Result<usize, Error> {
    let listing = format!("100644 blob a 1\ta/{name}\0{AROUND}");
    let mut tree = Tree::read(listing.as_bytes()).unwrap_or_default();
    tree.set_link("link".to_owned(), "b".to_owned());
    let mut closure = Closure::new(Arc::new(tree), true);
    closure.start("a", &["b".to_owned()], Some(WrapperName::Terragrunt))?;
    loop {
        let requests = closure.files_to_read();
        if requests.is_empty() {
            let limits = ContextLimits {
                files: 100,
                folders: 100,
                bytes: 100,
            };
            return Ok(closure.finish(limits)?.entries.len());
        }
        requests
            .iter()
            .try_for_each(|file| closure.supply(file, &module::read(&file.path, text)))?;
    }
}
