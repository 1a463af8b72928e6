//! The native syntax.

use hcl_edit::{
    Span as _,
    parser::parse_body,
    structure::{Block, Body},
};

use super::{Call, Facts, Fault, is_local};

pub(super) fn read(text: &str) -> Result<Facts, Fault> {
    let body = parse_body(text).map_err(|error| fault(&error))?;
    let calls = body
        .get_blocks("module")
        .filter_map(|block| call(text, block))
        .collect();
    Ok(Facts {
        calls,
        backend: backend(&body),
    })
}

fn fault(error: &hcl_edit::parser::Error) -> Fault {
    let at = error.location();
    Fault {
        line: at.line(),
        column: at.column(),
        message: error.message().to_owned(),
    }
}

/// A call whose source is a plain local path. Sources that the engine computes cannot be followed from here.
fn call(text: &str, block: &Block) -> Option<Call> {
    let source = block
        .body
        .get_attribute("source")?
        .value
        .as_str()?
        .to_owned();
    let module = block
        .labels
        .first()
        .map_or("", |label| label.as_str())
        .to_owned();
    let before = block
        .span()
        .and_then(|span| text.get(..span.start))
        .unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    is_local(&source).then_some(Call {
        module,
        source,
        line,
    })
}

fn backend(body: &Body) -> Option<String> {
    body.get_blocks("terraform").find_map(|settings| {
        let named = settings
            .body
            .get_blocks("backend")
            .find_map(|block| block.labels.first());
        let cloud = || {
            settings
                .body
                .has_blocks("cloud")
                .then(|| "cloud".to_owned())
        };
        named.map(|label| label.as_str().to_owned()).or_else(cloud)
    })
}
