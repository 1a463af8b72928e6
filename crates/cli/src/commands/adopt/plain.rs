//! Resource for a state file of a local engine.

use super::adoption::{Adoption, Options};
use super::git_source::from_options;
use super::state::Summary;

/// Builds the resource for the state in `file`.
///
/// # Errors
/// An option is missing or not valid.
pub(crate) fn map(file: &str, state: &Summary, options: &Options) -> Result<Adoption, String> {
    let mut adoption = Adoption::new(options);
    if !from_options(&mut adoption, options)? {
        return Err("--from state requires --url: the git repository of the module".to_owned());
    }
    adoption.describe_state(state);
    adoption.approve_later(false);
    let text = "Push the state file to the managed state of the resource. The file contains \
                secrets: delete it after the adoption";
    adoption.push_file(text, file);
    Ok(adoption)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn state_file_is_pushed_to_a_suspended_resource() {
        let options = Options {
            name: "web".into(),
            namespace: "team".into(),
            image_name: "registry.test/web".into(),
            registry_secret: Some("registry".into()),
            url: Some("https://git.test/a/b".into()),
            path: Some("web".into()),
            ..Options::default()
        };
        let adoption = map("my state.tfstate", &Summary::default(), &options).unwrap();
        let wanted = json!({
            "suspend": true,
            "gitRepo": {"url": "https://git.test/a/b", "path": "web"},
            "containerRegistry": {
                "imageName": "registry.test/web",
                "secretRef": {"name": "registry", "key": ".dockerconfigjson"},
            },
            "backend": {"provider": "managed", "adopt": true},
            "approval": {"mode": "Manual"},
        });
        assert_eq!(adoption.manifest()["spec"], wanted);
        let command = &adoption.steps[0].commands[0];
        let push = "kubectl alustan state push web 'my state.tfstate' -n team";
        assert_eq!(command, push);
        let options = Options {
            url: None,
            ..options
        };
        assert!(map("f", &Summary::default(), &options).is_err());
    }
}
