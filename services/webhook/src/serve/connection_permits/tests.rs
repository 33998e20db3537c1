use std::future::pending;

use super::*;

const GREEDY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
const THIRD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 3));

fn permits(max: usize) -> ConnectionPermits {
    ConnectionPermits::new(max, CancellationToken::new())
}

fn take(permits: &ConnectionPermits, address: IpAddr, count: usize) -> Vec<ConnectionPermit> {
    let taken = (0..count).map(|_| permits.take(address).expect("there is room"));
    taken.inspect(|permit| permit.stands(Standing::Open)).collect()
}

fn given_up(permits: &[ConnectionPermit]) -> Vec<bool> {
    permits.iter().map(|permit| permit.holder.end.is_cancelled()).collect()
}

#[test]
fn who_has_the_most_gives_up_its_oldest_until_both_have_as_many() {
    let permits = permits(6);
    let greedy = take(&permits, GREEDY, 6);
    let others = take(&permits, OTHER, 3);
    assert_eq!(given_up(&greedy), [true, true, true, false, false, false]);
    assert!(permits.take(OTHER).is_none(), "it would have more than the one that gives up");
    assert!(permits.take(GREEDY).is_none());
    assert_eq!(given_up(&others), [false; 3]);
}

#[test]
fn nobody_gives_up_while_there_is_room_and_none_to_oneself() {
    let permits = permits(3);
    let mut greedy = take(&permits, GREEDY, 3);
    assert!(permits.take(GREEDY).is_none());
    greedy.pop();
    let other = take(&permits, OTHER, 1);
    assert_eq!((given_up(&greedy), given_up(&other)), (vec![false; 2], vec![false]));
}

#[test]
fn the_least_is_lost_that_can_be() {
    let permits = permits(5);
    let greedy = take(&permits, GREEDY, 5);
    let [beginning, answering, idle, known, new] = &greedy[..] else { panic!("there are five") };
    beginning.holder.requests.begin();
    beginning.holder.requests.body_is_coming();
    answering.holder.requests.begin();
    known.stands(Standing::Known);
    new.stands(Standing::New);
    let _others = take(&permits, OTHER, 1);
    assert!(new.holder.end.is_cancelled());
    let _others = take(&permits, THIRD, 1);
    assert!(idle.holder.end.is_cancelled());
    let _others = take(&permits, IpAddr::from([192, 0, 2, 4]), 1);
    assert!(beginning.holder.end.is_cancelled());
    assert!(permits.take(IpAddr::from([192, 0, 2, 5])).is_none(), "nothing is left that can be lost");
    assert!(!answering.holder.end.is_cancelled() && !known.holder.end.is_cancelled());
}

#[test]
fn newcomer_gets_the_oldest_unfinished_place_among_many_addresses() {
    let permits = permits(5);
    let all: Vec<_> = (1..=5).map(|host| take(&permits, IpAddr::from([198, 51, 100, host]), 1).remove(0)).collect();
    let [idle, answering, beginning, younger, known] = &all[..] else { panic!("there are five") };
    answering.holder.requests.begin();
    for permit in [beginning, younger, known] {
        permit.holder.requests.begin();
        permit.holder.requests.body_is_coming();
    }
    known.stands(Standing::Known);
    let newcomer = take(&permits, OTHER, 1);
    assert_eq!(given_up(&all), [false, false, true, false, false]);
    assert!(permits.take(OTHER).is_none(), "it has one already");
    let third = take(&permits, THIRD, 1);
    assert!(younger.holder.end.is_cancelled() && !idle.holder.end.is_cancelled());
    assert_eq!((given_up(&newcomer), given_up(&third)), (vec![false], vec![false]));
    assert!(permits.take(GREEDY).is_none(), "idle connections and finished requests stay");
}

#[test]
fn one_that_cannot_give_up_is_no_excuse_for_the_next() {
    let permits = permits(5);
    let busy = take(&permits, GREEDY, 3);
    for permit in &busy {
        permit.holder.requests.begin();
    }
    let idle = take(&permits, OTHER, 2);
    let _third = take(&permits, THIRD, 1);
    assert_eq!((given_up(&busy), given_up(&idle)), (vec![false; 3], vec![true, false]));
}

#[tokio::test]
async fn what_is_being_answered_when_its_place_is_given_up_is_answered() {
    let permits = permits(2);
    let greedy = take(&permits, GREEDY, 2);
    let holder = Arc::clone(&greedy[0].holder);
    let (tell, answered) = tokio::sync::oneshot::channel::<()>();
    let connection = async {
        // The request arrives just after the permit was chosen.
        let _third = permits.take(OTHER).expect("the first gives up");
        assert!(holder.end.is_cancelled() && holder.requests.are_last());
        holder.requests.begin();
        answered.await.unwrap();
        holder.requests.answer_is_given();
        holder.requests.answered();
        assert!(holder.requests.is_one_being_answered());
        holder.requests.answer_is_taken();
        pending::<()>().await;
    };
    let mut run = pin!(greedy[0].run(connection));
    assert!(futures::poll!(run.as_mut()).is_pending());
    tell.send(()).unwrap();
    assert_eq!(run.await, Left::GivenUp);
}

#[tokio::test]
async fn all_are_cut_also_who_has_no_place_any_more() {
    let permits = permits(2);
    let greedy = take(&permits, GREEDY, 2);
    let _other = permits.take(OTHER).expect("the first gives up");
    greedy[0].holder.requests.begin();
    permits.cut.cancel();
    assert_eq!(greedy[0].run(pending()).await, Left::GivenUp);
    assert_eq!(greedy[1].run(pending()).await, Left::Cut);
}

#[test]
fn a_place_is_free_once_whether_it_was_given_up_or_not() {
    let permits = permits(3);
    let greedy = take(&permits, GREEDY, 3);
    let other = permits.take(OTHER);
    drop(greedy);
    drop(other);
    let taken = lock(&permits.taken);
    assert_eq!((taken.all, taken.of.len()), (0, 0));
}

#[test]
fn an_address_is_the_same_in_both_notations() {
    let permits = permits(4);
    let _greedy = take(&permits, GREEDY, 4);
    let mapped = std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped();
    assert!(permits.take(mapped.into()).is_none());
}
