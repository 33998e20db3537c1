//! What the platform's profiles did to a pod, which no namespaced profile touches.

use std::collections::BTreeSet;

/// Places that the platform's profiles added or set, by pointers as they stand in the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protected {
    pointers: BTreeSet<Box<str>>,
}

impl Protected {
    /// From the pointers of all that was added, and of all places whose values were replaced.
    pub(crate) fn new(pointers: impl IntoIterator<Item: Into<Box<str>>>) -> Self {
        Self { pointers: pointers.into_iter().map(Into::into).collect() }
    }

    /// The protected place that a change touches: the one that it is, one that it is within, or, where something that was
    /// there is taken away or replaced, one that is within it. What is added at a protected place that is empty again, by
    /// somebody else's doing, touches nothing.
    pub(super) fn touched(&self, pointer: &str, was_there: bool) -> Option<&str> {
        let ends = pointer.match_indices('/').map(|(index, _)| index).filter(|index| *index > 0);
        let around = ends
            .filter_map(|end| pointer.get(..end))
            .find_map(|around| self.pointers.get(around))
            .map(|pointer| &**pointer);
        let within = || {
            let at = self.pointers.get(pointer).map(|pointer| &**pointer);
            at.or_else(|| self.below(pointer).next()).filter(|_| was_there)
        };
        around.or_else(within)
    }

    /// The protected places within another.
    pub(super) fn below(&self, pointer: &str) -> impl Iterator<Item = &str> {
        let folder = format!("{pointer}/").into_boxed_str();
        let from = self.pointers.range(folder.clone()..).map(|pointer| &**pointer);
        from.take_while(move |found| found.starts_with(&*folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_touches_what_it_is_what_it_is_in_and_what_is_in_it() {
        let protected =
            Protected::new(["/spec/containers/proxy", "/spec/containers/app/env/A", "/metadata/labels/x~1y"]);
        for (pointer, was_there, expected) in [
            ("/spec/containers/proxy", true, true),
            ("/spec/containers/proxy", false, false),
            ("/spec/containers/proxy/env/B", false, true),
            ("/spec/containers/proxy2", true, false),
            ("/spec/containers/prox", true, false),
            ("/spec/containers/app/env/A/value", true, true),
            ("/spec/containers/app/env/AB", true, false),
            ("/spec/containers/app/env", true, true),
            ("/spec/containers/app", true, true),
            ("/spec/containers/app/image", true, false),
            ("/metadata/labels/x~1y", true, true),
            ("/metadata/labels/x", true, false),
        ] {
            assert_eq!(protected.touched(pointer, was_there).is_some(), expected, "{pointer} {was_there}");
        }
    }
}
