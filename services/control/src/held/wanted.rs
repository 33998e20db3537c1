//! Whether pods are to wait, and whether waiting pods can be released, by what the leader's other tasks know.

use pillion_api::names::InjectionLevel;
use tokio::sync::watch;

use super::Injection;
use crate::probe::Found;
use crate::webhook_config::Live;

/// What others know.
#[derive(Debug)]
pub struct Known {
    /// What probing the endpoints found.
    pub found: watch::Receiver<Option<Found>>,
    /// The webhook configurations.
    pub live: watch::Receiver<Option<Live>>,
    /// Whether the kill switch is off; `None` until it is known.
    pub off: watch::Receiver<Option<bool>>,
}

/// Tells both, whenever they are something else, until whoever knows is gone.
pub async fn follow(mut known: Known, policies: watch::Sender<Option<bool>>, injection: watch::Sender<Injection>) {
    loop {
        let (wanted, now) = {
            let (found, live) = (known.found.borrow_and_update(), known.live.borrow_and_update());
            let answering = found.as_ref().is_some_and(|found| found.endpoints.answering > 0);
            let off = *known.off.borrow_and_update();
            judge(off.unwrap_or_default(), live.as_ref().filter(|_| off.is_some()), answering)
        };
        policies.send_if_modified(|told| std::mem::replace(told, wanted) != wanted);
        injection.send_if_modified(|told| std::mem::replace(told, now) != now);
        let changed = tokio::select! {
            changed = known.found.changed() => changed,
            changed = known.live.changed() => changed,
            changed = known.off.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Pods wait only where the webhook is called that lets them go, and only while injection is wanted at all. `None`: the
/// policies stay as they are. It is not known what is there, or it is damaged, which somebody is about to repair: that nobody
/// is called for a moment, or that nobody answers, is no reason to let pods run without.
fn judge(off: bool, live: Option<&Live>, answering: bool) -> (Option<bool>, Injection) {
    let Some(live) = live else { return (None, Injection::Silent) };
    if off || live.disarmed {
        return (Some(false), Injection::SwitchedOff);
    }
    let path = InjectionLevel::Held.path();
    let mut entries = live.mutating.iter().flat_map(|mutating| mutating.webhooks.iter().flatten());
    let is_called = entries
        .any(|entry| entry.client_config.service.as_ref().is_some_and(|service| service.path.as_deref() == Some(path)));
    let injection = if answering && is_called { Injection::Answering } else { Injection::Silent };
    (is_called.then_some(true), injection)
}

#[cfg(test)]
mod tests {
    use pillion_api::webhook_configuration::{Settings, mutating};

    use super::*;

    fn live(levels: &[InjectionLevel], disarmed: bool) -> Live {
        let settings = Settings { levels: levels.to_vec(), ..Settings::new("pillion-system", "") };
        Live { mutating: Some(mutating(&settings)), disarmed, ..Live::default() }
    }

    #[test]
    fn pods_wait_for_somebody_who_is_called() {
        let all = live(&InjectionLevel::ALL, false);
        assert_eq!(judge(false, Some(&all), true), (Some(true), Injection::Answering));
        // That nobody answers is what they wait for.
        assert_eq!(judge(false, Some(&all), false), (Some(true), Injection::Silent));
    }

    #[test]
    fn what_is_damaged_or_unknown_changes_no_policy_and_releases_nobody() {
        let damaged = live(&[InjectionLevel::Enabled], false);
        for there in [None, Some(&damaged), Some(&Live::default())] {
            assert_eq!(judge(false, there, true), (None, Injection::Silent));
        }
    }

    #[test]
    fn nobody_waits_where_nothing_is_to_be_injected() {
        let (all, disarmed) = (live(&InjectionLevel::ALL, false), live(&InjectionLevel::ALL, true));
        assert_eq!(judge(true, Some(&all), true), (Some(false), Injection::SwitchedOff));
        assert_eq!(judge(false, Some(&disarmed), true), (Some(false), Injection::SwitchedOff));
    }
}
