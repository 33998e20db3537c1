//! Tests the whole system with real components. The tests create pods through a real kube-apiserver, which calls
//! replicas of the real program through a Service, as in production.
//!
//! Each test runs in its own Linux namespaces. Most tests lease a control plane, which no other test uses at the same
//! time (see `pillion_testkit`).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking")]

mod api_loss;
mod audit;
mod autoscalers;
mod bad_inputs;
mod break_glass;
mod chart;
mod clock;
mod cold_start;
mod compare;
mod comparison;
mod configuration;
mod cost;
mod crashes;
mod dashboards;
mod direct;
mod doctor;
mod explain;
mod explain_past;
mod export;
mod export_functions;
mod first_profile;
mod fresh_namespaces;
mod gang_burst;
mod guardrails;
mod guardrails_installed;
mod held;
mod in_place;
mod in_place_at_scale;
mod injection;
mod k6_pods;
mod kinds;
mod large_cluster;
mod lists;
mod load;
mod lookups;
mod managed;
mod manifests;
mod mtls;
mod open_reports;
mod opt_in;
mod overlay;
mod profiles;
mod profiles_export;
#[path = "../support/prometheus.rs"]
mod prometheus;
mod rbac;
mod connectivity_check;
mod reinvocation;
mod revisions;
mod rig;
mod rolling;
mod rollout;
mod rollout_commands;
mod rotation;
mod safety_net;
mod scaling;
mod serving_secret;
mod shipped;
mod tutorial;
mod uninstall;
mod validation;
mod writers;
