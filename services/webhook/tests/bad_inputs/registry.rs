//! Where each number of the table is shown: by rows of this test's, by tests of its own, or where the thing itself lives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::bad_inputs::{bodies, pods, profiles, requests};

/// How many inputs there are.
const INPUTS: u8 = 70;

const HERE: &str = "services/webhook/tests/bad_inputs/";
const TLS_SERVER: &str = "services/webhook/tests/tls_server.rs";
const TRANSPORT: &str = "services/webhook/tests/transport.rs";
const CLIENTS: &str = "services/webhook/tests/clients.rs";
const FLOODS: &str = "services/webhook/tests/floods.rs";
const NAMESPACES: &str = "services/webhook/tests/namespaces.rs";
const LIVE: &str = "services/control/src/live/tests.rs";
const ENGINE: &str = "services/engine/src/";
const ENGINE_TESTS: &str = "services/engine/tests/";
const E2E: &str = "services/pillion/tests/e2e/";

/// Numbers and the tests that show them: folder or file, the rest of the file's path, the test. Rows count by themselves.
///
/// Where what comes of it is not what the table says, a comment says why.
const TESTS: &[(u8, &str, &str, &str)] = &[
    (4, TLS_SERVER, "", "a_body_of_7_mib_and_a_byte_is_answered_with_413_and_the_end"),
    (5, TLS_SERVER, "", "a_body_that_stalls_is_answered_with_408"),
    (6, TLS_SERVER, "", "a_slow_head_is_cut_and_an_idle_connection_is_not"),
    (10, HERE, "connections.rs", "a_path_of_100_kib_is_refused"),
    (11, ENGINE_TESTS, "expressions/limits.rs", "texts_that_exhaust_the_stack_of_other_parsers_are_refused"),
    (15, ENGINE_TESTS, "untouched.rs", "what_no_profile_speaks_of_stays_to_the_byte"),
    (19, TLS_SERVER, "", "other_shapes_of_http1_are_served_in_order"),
    (19, HERE, "connections.rs", "chunks_are_read_as_they_are_or_not_at_all"),
    // A length beside chunks is passed over, and the connection ends: RFC 9112 allows it, and nothing can be smuggled.
    (20, HERE, "connections.rs", "nothing_is_smuggled_behind_a_body"),
    (21, HERE, "connections.rs", "as_many_connections_as_the_table_says"),
    (21, TLS_SERVER, "", "one_connection_too_many_is_refused_and_the_others_are_served"),
    // A wrong name is shown the certificate too: it is the client who compares, and a replica does not know by what names
    // it is called. Without client certificates a client is not asked for one, and garbage cannot come.
    (22, HERE, "connections.rs", "names_and_versions_of_tls"),
    (22, TRANSPORT, "", "both_versions_of_tls_are_served_and_no_older_one"),
    (22, CLIENTS, "", "a_certificate_that_is_not_good_ends_the_handshake_and_is_counted_apart"),
    (23, HERE, "connections.rs", "what_is_no_tls_is_closed"),
    (23, TLS_SERVER, "", "a_client_that_does_not_shake_hands_is_cut"),
    // Closed after 5 s is who is silent in a handshake. Who is silent after it is waited for as for any idle connection:
    // the API server's client dials ahead, and keeps for 90 s what it did not need; it would lose a review on it.
    (24, TLS_SERVER, "", "a_client_that_does_not_shake_hands_is_cut"),
    (24, TLS_SERVER, "", "an_idle_connection_is_closed_in_the_end"),
    (26, "services/webhook/tests/overload.rs", "", "the_callers_timeout_is_the_deadline_and_nonsense_is_the_default"),
    (27, "services/webhook/tests/overload.rs", "", "a_deadline_that_has_passed_costs_no_work"),
    (35, ENGINE_TESTS, "between.rs", "a_copied_pod_settles_and_has_nothing_twice"),
    (35, ENGINE_TESTS, "properties.rs", "injection_adds_once_and_only_adds"),
    (39, ENGINE_TESTS, "large.rs", "ten_thousand_containers_and_variables"),
    (43, NAMESPACES, "", "only_an_unknown_namespace_is_looked_up_and_what_is_found_counts"),
    (43, NAMESPACES, "", "a_look_up_that_hangs_holds_a_request_for_300_ms"),
    (43, LIVE, "", "eight_wait_for_the_api_server_at_most_and_who_waits_in_vain_is_unknown"),
    (46, ENGINE, "profile/tests.rs", "a_tenants_profile_is_held_to_its_limits"),
    (46, ENGINE, "limits/tests/reviews.rs", "what_the_text_does_not_show_is_found_in_the_result"),
    (46, ENGINE, "limits/tests/reviews.rs", "a_profile_that_denies_on_faults_refuses_the_pod"),
    (47, ENGINE, "limits/tests/scope.rs", "nothing_else_of_the_pod_may_change"),
    (48, ENGINE, "limits/tests/scope.rs", "images_come_from_registries_that_are_allowed"),
    // Keys of other domains are reserved by the platform, as it says; `app` is the namespace's own to select by, and a
    // tenant's profile acts in its own namespace alone.
    (50, ENGINE, "limits/tests/scope.rs", "reserved_keys_are_neither_set_nor_changed_nor_removed"),
    (51, ENGINE, "parameter/tests.rs", "text_becomes_what_the_type_says"),
    (52, ENGINE, "parameter/tests.rs", "what_does_not_fit_says_what_was_expected"),
    (53, ENGINE, "profile/tests.rs", "expressions_are_checked"),
    (53, ENGINE, "profile/extend/tests.rs", "a_chain_that_cannot_be_followed_is_told"),
    (
        54,
        "services/control/src/index/tests/extending.rs",
        "",
        "a_child_waits_for_its_parent_and_one_that_is_broken_is_told_once",
    ),
    (
        54,
        "services/control/src/index/tests/extending.rs",
        "",
        "a_parent_that_is_broken_or_gone_leaves_its_children_at_work",
    ),
    (55, ENGINE_TESTS, "untouched.rs", "profiles_come_in_their_own_order"),
    (55, ENGINE, "review/tests/templates.rs", "one_profiles_conflict_leaves_the_others_in_force"),
    (56, HERE, "profiles.rs", "a_profile_of_a_namespace_acts_on_no_pod_of_another"),
    (56, ENGINE, "profile/tenant.rs", "what_reaches_beyond_the_namespaces_own_pods_is_refused"),
    (57, ENGINE_TESTS, "expressions/limits.rs", "regular_expressions_are_bounded"),
    (58, HERE, "profiles.rs", "ten_thousand_profiles_in_a_namespace_are_served"),
    (59, ENGINE, "review/tests/templates.rs", "fields_that_nobody_knows_stay_as_they_are"),
    // By `$sidecar`: a native sidecar or an ordinary container, as the profile finds the cluster to be.
    (60, ENGINE_TESTS, "cases.rs", "every_case_is_as_it_says"),
    (61, ENGINE, "review/tests/templates.rs", "a_pod_for_windows_gets_no_linux_container"),
    (63, CLIENTS, "", "without_a_certificate_it_is_401_before_the_body_is_read"),
    (63, E2E, "mtls.rs", "the_api_server_is_known_by_its_certificate_and_nobody_else_is_answered"),
    // No token is looked at: a client is known by its certificate, or it is answered 401 whatever it brings.
    (64, CLIENTS, "", "without_a_certificate_it_is_401_before_the_body_is_read"),
    (64, CLIENTS, "", "a_certificate_that_is_not_good_ends_the_handshake_and_is_counted_apart"),
    (65, FLOODS, "", "ten_thousand_namespaces_leave_nothing_behind"),
    (65, LIVE, "", "the_api_server_is_asked_ten_times_in_any_second"),
    (65, CLIENTS, "", "without_a_certificate_it_is_401_before_the_body_is_read"),
    // A tenant's pod that has a certificate of the same authority is told apart by its name.
    (66, CLIENTS, "", "names_say_which_clients_of_the_authority_may_call"),
    (67, FLOODS, "", "the_same_review_is_the_same_answer_every_time"),
    (68, HERE, "pods.rs", "a_dry_run_is_answered_as_the_real_one"),
    (69, FLOODS, "", "ten_thousand_groups_are_not_logged"),
    (70, HERE, "pods.rs", "managed_fields_are_read_past"),
];

#[test]
fn every_input_is_shown_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = BTreeMap::new();
    let mut shown = BTreeSet::new();
    for (number, folder, rest, test) in TESTS {
        let path = format!("{folder}{rest}");
        let text = files.entry(path.clone()).or_insert_with(|| {
            std::fs::read_to_string(root.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"))
        });
        let declared = [format!(" {test}("), format!("    {test}(\n")];
        assert!(declared.iter().any(|declared| text.contains(declared)), "B{number}: {path} has no test {test}");
        shown.insert(*number);
    }
    for row in [bodies::rows(), requests::rows(), pods::rows(), profiles::rows()].into_iter().flatten() {
        shown.insert(row.number);
    }
    let missing: Vec<_> = (1..=INPUTS).filter(|number| !shown.contains(number)).collect();
    assert_eq!((missing, shown.len()), (Vec::new(), usize::from(INPUTS)));
}
