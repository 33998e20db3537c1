use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::*;
use crate::release::DEFAULT_CLUSTER_DOMAIN;

const DAY: Duration = Duration::from_hours(24);

/// A CA; times are in days from now.
struct Authority {
    generation: Generation,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// Verdicts on three certificates, and whether they are trusted.
type Verdicts = [(Verdict, bool); 3];

struct Leaf<'l> {
    name: &'l str,
    from: i64,
    until: i64,
    for_servers: bool,
}

const GOOD: Leaf<'static> = Leaf { name: "pillion.pillion-system.svc", from: -1, until: 7, for_servers: true };

fn set_validity(params: &mut CertificateParams, from: i64, until: i64) {
    let day = |days: i64| {
        let seconds = Timestamp::now().as_second() + days * 86_400;
        // rcgen uses another crate's time type; both know a date and a number of seconds.
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(seconds).unwrap())
    };
    (params.not_before, params.not_after) = (day(from), day(until));
}

impl Authority {
    fn new(generation: u32) -> Self {
        Self::valid(generation, -1, 365)
    }

    fn valid(generation: u32, from: i64, until: i64) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("authority {generation}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        set_validity(&mut params, from, until);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { generation: Generation(generation), issuer }
    }

    fn certificate(&self) -> CertificateDer<'static> {
        certificates(self.issuer.pem().as_bytes()).remove(0)
    }

    fn known(&self) -> Known {
        Known { generation: self.generation, certificate: self.certificate() }
    }

    fn leaf(&self, leaf: &Leaf<'_>) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::new(vec![leaf.name.to_owned()]).unwrap();
        params.extended_key_usages = vec![if leaf.for_servers {
            ExtendedKeyUsagePurpose::ServerAuth
        } else {
            ExtendedKeyUsagePurpose::ClientAuth
        }];
        set_validity(&mut params, leaf.from, leaf.until);
        let pem = params.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap().pem();
        certificates(pem.as_bytes())
    }
}

fn release() -> Release {
    Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap()
}

fn expected(known: &[&Authority], newest: u32, bundle: &[&Authority]) -> Expected {
    let known = known.iter().map(|authority| authority.known()).collect();
    let bundle = bundle.iter().map(|authority| authority.certificate()).collect();
    Expected::of(&release(), known, Some(Generation(newest)), bundle, 1).unwrap()
}

fn judge(expected: &Expected, chain: &[CertificateDer<'_>]) -> (Verdict, bool) {
    let judgement = Judge::new(expected, Timestamp::now(), DAY + DAY / 2).judge(chain);
    (judgement.verdict, judgement.trusted)
}

#[test]
fn whose_leaf_it_is_and_whether_it_is_trusted_are_two_questions() {
    let (old, new, stranger) = (Authority::new(1), Authority::new(2), Authority::new(3));
    let leaves = [&old, &new, &stranger].map(|authority| authority.leaf(&GOOD));
    let cases: [(&str, &[&Authority], Verdicts); 4] = [
        (
            "expanded",
            &[&old, &new],
            [(Verdict::Older(Generation(1)), true), (Verdict::Newest, true), (Verdict::Stranger, false)],
        ),
        (
            "contracted",
            &[&new],
            [(Verdict::Older(Generation(1)), false), (Verdict::Newest, true), (Verdict::Stranger, false)],
        ),
        (
            "somebody's certificate in the bundle",
            &[&old, &stranger],
            [(Verdict::Older(Generation(1)), true), (Verdict::Newest, false), (Verdict::Stranger, true)],
        ),
        (
            "no bundle yet: all who are known",
            &[],
            [(Verdict::Older(Generation(1)), true), (Verdict::Newest, true), (Verdict::Stranger, false)],
        ),
    ];
    for (what, bundle, verdicts) in cases {
        let expected = expected(&[&old, &new], 2, bundle);
        for (leaf, verdict) in leaves.iter().zip(verdicts) {
            assert_eq!(judge(&expected, leaf), verdict, "{what}");
        }
    }
}

#[test]
fn a_leaf_of_the_newest_that_will_not_do_says_why() {
    let new = Authority::new(2);
    let expected = expected(&[&new], 2, &[&new]);
    let cases = [
        (GOOD, (Verdict::Newest, true)),
        (Leaf { until: 2, ..GOOD }, (Verdict::Newest, true)),
        (Leaf { until: 1, ..GOOD }, (Verdict::Unfit(Unfit::Expiring), true)),
        (Leaf { from: -9, until: -2, ..GOOD }, (Verdict::Unfit(Unfit::Expired), false)),
        (Leaf { from: 2, ..GOOD }, (Verdict::Unfit(Unfit::NotYetValid), false)),
        (Leaf { name: "other.pillion-system.svc", ..GOOD }, (Verdict::Unfit(Unfit::WrongName), false)),
    ];
    for (leaf, verdict) in cases {
        assert_eq!(judge(&expected, &new.leaf(&leaf)), verdict);
    }
    let for_clients = new.leaf(&Leaf { for_servers: false, ..GOOD });
    assert!(matches!(judge(&expected, &for_clients), (Verdict::Stranger | Verdict::Unfit(Unfit::Unusable), false)));
}

#[test]
fn an_expired_leaf_of_an_older_authority_is_an_older_one() {
    let (old, new) = (Authority::new(1), Authority::new(2));
    let expected = expected(&[&old, &new], 2, &[&old, &new]);
    let expired = old.leaf(&Leaf { from: -9, until: -2, ..GOOD });
    assert_eq!(judge(&expected, &expired), (Verdict::Older(Generation(1)), false));
}

#[test]
fn an_authority_has_a_time_of_its_own_as_for_the_api_server() {
    let (over, ending) = (Authority::valid(2, -30, -2), Authority::valid(3, -30, 1));
    let expected_over = expected(&[&over], 2, &[&over]);
    assert_eq!(judge(&expected_over, &over.leaf(&GOOD)), (Verdict::Unfit(Unfit::Authority), false));
    // The certificate has seven days left, but its CA only one.
    let soon = Judge::new(&expected(&[&ending], 3, &[&ending]), Timestamp::now(), 2 * DAY).judge(&ending.leaf(&GOOD));
    assert_eq!((soon.verdict, soon.trusted), (Verdict::Unfit(Unfit::Expiring), true));
}

#[test]
fn certificates_of_somebody_elses_making_are_judged_by_the_bundle() {
    let (theirs, other) = (Authority::new(7), Authority::new(8));
    let expected = Expected::of_strangers(&release(), vec![theirs.certificate()]).unwrap();
    let cases = [
        (theirs.leaf(&GOOD), (Verdict::Trusted, true)),
        (theirs.leaf(&Leaf { until: 1, ..GOOD }), (Verdict::Unfit(Unfit::Expiring), true)),
        (theirs.leaf(&Leaf { name: "other", ..GOOD }), (Verdict::Unfit(Unfit::WrongName), false)),
        (theirs.leaf(&Leaf { from: -9, until: -2, ..GOOD }), (Verdict::Unfit(Unfit::Expired), false)),
        (other.leaf(&GOOD), (Verdict::Stranger, false)),
    ];
    for (leaf, verdict) in cases {
        assert_eq!(judge(&expected, &leaf), verdict);
    }
}

#[test]
fn what_is_no_certificate_is_a_strangers() {
    let new = Authority::new(2);
    let expected = expected(&[&new], 2, &[&new]);
    assert_eq!(judge(&expected, &[]), (Verdict::Stranger, false));
    assert_eq!(judge(&expected, &[CertificateDer::from(vec![1, 2, 3])]), (Verdict::Stranger, false));
    assert_eq!(certificates(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\njunk").len(), 1);
    let nobody = Expected { known: Vec::new(), bundle: vec![CertificateDer::from(vec![1])], ..expected };
    assert_eq!(judge(&nobody, &new.leaf(&GOOD)), (Verdict::Stranger, false));
}
