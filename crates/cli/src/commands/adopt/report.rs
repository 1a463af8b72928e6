//! Output of the command: the resource, the report and the steps.

use serde_json::Value;

use super::adoption::{Adoption, Step};
use super::object::manager;
use super::values::resource_type;
use crate::error::Error;

/// Object of the other operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Other<'a> {
    /// Name of its CRD.
    pub(crate) crd: &'static str,
    pub(crate) name: &'a str,
    pub(crate) object: &'a Value,
}

/// Output about an adoption.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manifest<'a> {
    adoption: &'a Adoption,
    other: Option<Other<'a>>,
}

impl<'a> Manifest<'a> {
    /// Creates the output.
    pub(crate) fn new(adoption: &'a Adoption, other: Option<Other<'a>>) -> Self {
        Self { adoption, other }
    }

    /// Returns the resource as YAML.
    pub(crate) fn yaml(&self) -> Result<String, Error> {
        self.adoption
            .yaml()
            .map_err(|error| Error::Refused(format!("cannot print the resource: {error}")))
    }

    /// Returns the facts, and the fields that differ or are lacking.
    pub(crate) fn report(&self) -> String {
        let facts = self.adoption.facts.iter().map(|fact| format!("# {fact}"));
        // The order of notes is that of `Handling`: first the fields that differ.
        let notes = self.adoption.notes.iter().map(|note| {
            let handling = note.handling.as_str();
            format!("# {handling}: {}: {}", note.path, note.text)
        });
        facts.chain(notes).collect::<Vec<_>>().join("\n")
    }

    /// Returns the numbered steps of the user. `is_applied`: whether the resource was created and the other object was stopped.
    pub(crate) fn steps(&self, is_applied: bool) -> String {
        let mut steps = Vec::new();
        if !is_applied {
            steps.extend(self.stop());
            let (namespace, name) = self.adoption.key();
            let text = "Create the resource from the YAML above. The alternative to the steps so far is \
                        this command with --apply";
            let command = format!("kubectl apply -n {namespace} -f {name}.yaml");
            steps.push(Step::new(text, [command]));
        }
        steps.extend(self.gitops());
        steps.extend(self.adoption.steps.iter().cloned());
        steps.push(self.resume());
        steps.extend(self.adoption.cleanup.iter().cloned());
        let lines = steps.iter().enumerate().flat_map(|(index, step)| {
            let text = format!("# {}. {}.", index + 1, step.text);
            let commands = step.commands.iter();
            std::iter::once(text).chain(commands.map(|command| format!("#    {command}")))
        });
        std::iter::once("# next steps:".to_owned())
            .chain(lines)
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn stop(&self) -> Option<Step> {
        let other = self.other?;
        let stop = self.adoption.stop.as_ref()?;
        let (namespace, _) = self.adoption.key();
        let text = format!("Stop the other operator ({})", stop.effect);
        let Other { crd, name, .. } = other;
        let command = format!(
            "kubectl patch {crd} {name} -n {namespace} --type merge -p '{}'",
            stop.patch
        );
        Some(Step::new(text, [command]))
    }

    /// Returns the step for an object that a GitOps tool manages.
    fn gitops(&self) -> Option<Step> {
        let manager = manager(self.other?.object)?;
        let text = format!(
            "The object of the other operator is managed by {manager}: make the change there too, \
             otherwise it is reset, and the other operator applies again"
        );
        Some(Step::new(text, []))
    }

    fn resume(&self) -> Step {
        let (namespace, name) = self.adoption.key();
        let text = "Start the first plan. Without changes the resource becomes Ready, and nothing \
                    is applied. A plan with changes waits for approval: check that it creates and \
                    destroys nothing";
        let commands = [
            format!("kubectl alustan resume {name} -n {namespace}"),
            format!("kubectl get {} {name} -n {namespace} -w", resource_type()),
            format!("kubectl alustan plan {name} -n {namespace}"),
        ];
        Step::new(text, commands)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::adoption::{Options, Stop};
    use super::super::fields::Note;
    use super::*;

    fn adoption() -> Adoption {
        let options = Options {
            name: "web".into(),
            namespace: "team".into(),
            ..Options::default()
        };
        let mut adoption = Adoption::new(&options);
        adoption.facts.push("serial 3".into());
        adoption.note(Note::lacks("spec.targets", "none"));
        adoption.note(Note::differs("spec.planOnly", "waits"));
        adoption.steps.push(Step::new("Copy", []));
        adoption.stop = Some(Stop {
            patch: json!({"spec": {"suspend": true}}),
            effect: "suspended",
        });
        adoption
    }

    fn other(object: &Value) -> Other<'_> {
        Other {
            crd: "terraforms.infra.contrib.fluxcd.io",
            name: "web",
            object,
        }
    }

    #[test]
    fn report_lists_facts_and_each_noted_field() {
        let adoption = adoption();
        let report = Manifest::new(&adoption, None).report();
        let wanted = "# serial 3\n# differs: spec.planOnly: waits\n# lacks: spec.targets: none";
        assert_eq!(report, wanted);
    }

    #[test]
    fn steps_begin_with_the_stop_of_the_other_operator() {
        let adoption = adoption();
        let object = json!({"metadata": {"labels": {"helm.toolkit.fluxcd.io/name": "x"}}});
        let manifest = Manifest::new(&adoption, Some(other(&object)));
        let steps = manifest.steps(false);
        let wanted = [
            "# 1. Stop the other operator (suspended).",
            "#    kubectl patch terraforms.infra.contrib.fluxcd.io web -n team --type merge -p '{\"spec\":{\"suspend\":true}}'",
            "# 2. Create the resource",
            "# 3. The object of the other operator is managed by a Flux HelmRelease",
            "# 4. Copy.",
            "# 5. Start the first plan.",
            "#    kubectl alustan resume web -n team",
        ];
        for line in wanted {
            assert!(steps.contains(line), "{line} in {steps}");
        }
        let steps = manifest.steps(true);
        assert!(steps.contains("# 1. The object"), "{steps}");
    }
}
