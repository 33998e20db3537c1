//! What the platform's profiles did to a pod, which no namespaced profile touches.

use std::collections::BTreeMap;

/// What was done at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// Something was added. If somebody else took it away since, there is nothing to protect.
    Added,
    /// What stood there was replaced or taken away. That there is nothing now may be what was wanted.
    Set,
}

/// Places that the platform's profiles added or set, by pointers as they stand in the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protected {
    pointers: BTreeMap<Box<str>, Done>,
}

impl Protected {
    /// From pointers. Of what is said of one place twice, the last counts.
    pub(crate) fn new<P: Into<Box<str>>>(pointers: impl IntoIterator<Item = (P, Done)>) -> Self {
        Self { pointers: pointers.into_iter().map(|(pointer, done)| (pointer.into(), done)).collect() }
    }

    /// The protected place that a change touches: the one that it is, one that it is within, or, where something that was
    /// there is taken away or replaced, one that is within it.
    pub(super) fn touched(&self, pointer: &str, was_there: bool) -> Option<&str> {
        let ends = pointer.match_indices('/').map(|(index, _)| index).filter(|index| *index > 0);
        let mut around = ends.filter_map(|end| self.pointers.get_key_value(pointer.get(..end)?));
        let at = || self.pointers.get_key_value(pointer).filter(|(_, done)| was_there || **done == Done::Set);
        let found = around.next().or_else(at).map(|(pointer, _)| &**pointer);
        found.or_else(|| self.below(pointer).next().filter(|_| was_there))
    }

    /// The protected places within another.
    pub(super) fn below(&self, pointer: &str) -> impl Iterator<Item = &str> {
        let folder = format!("{pointer}/").into_boxed_str();
        let from = self.pointers.range(folder.clone()..).map(|(pointer, _)| &**pointer);
        from.take_while(move |found| found.starts_with(&*folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_touches_what_it_is_what_it_is_in_and_what_is_in_it() {
        let protected = Protected::new([
            ("/spec/containers/proxy", Done::Added),
            ("/spec/containers/app/env/A", Done::Added),
            ("/spec/containers/app/env/GONE", Done::Set),
            ("/metadata/labels/x~1y", Done::Added),
        ]);
        for (pointer, was_there, expected) in [
            ("/spec/containers/proxy", true, true),
            ("/spec/containers/proxy", false, false),
            ("/spec/containers/proxy/env/B", false, true),
            ("/spec/containers/proxy2", true, false),
            ("/spec/containers/prox", true, false),
            ("/spec/containers/app/env/A/value", true, true),
            ("/spec/containers/app/env/GONE", false, true),
            ("/spec/containers/app/env/A", false, false),
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
