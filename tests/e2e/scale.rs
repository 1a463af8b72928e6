//! A small run of `make scale`: costs of a resource that do not depend on the speed of the machine.

mod alone {
    use std::time::Duration;

    use alustan_tests::{Scale, Sender, Size, scene_alone};

    /// Largest number of stored objects per resource after its first apply, with its share of the builds.
    const OBJECTS: usize = 15;
    /// Largest number of requests of the operator for a later apply.
    const REQUESTS: f64 = 25.0;

    #[tokio::test]
    async fn scale_resources_cost_a_bounded_number_of_requests_and_objects() {
        scene_alone("scale", |_| {
            Box::pin(async {
                let size = Size::of(40);
                let mut scale = Scale::open(size).await;
                scale.fill().await;
                assert_eq!(scale.applied_otherwise(1), 0, "not applied once");

                let objects = scale.objects().await;
                let stored = objects
                    .iter()
                    .filter(|(kind, _)| **kind != "Event")
                    .map(|(_, count)| count)
                    .sum::<usize>();
                assert!(stored <= OBJECTS * size.resources, "{objects:?}");

                let applies = scale.applies(2).await;
                let requests = applies.per_resource(Sender::Operator);
                assert!(requests <= REQUESTS, "{requests} requests: {applies:?}");

                let before = scale.apply_count();
                // One resource changes while no operator runs. The new operator applies that one only.
                scale.restart().await;
                assert_eq!(scale.apply_count(), before + 1);
                let idle = scale.idle(Duration::from_secs(10)).await;
                assert_eq!(idle.writes, Vec::<String>::new());
                assert_eq!(scale.errors(), Vec::<String>::new());
                scale.close().await;
            })
        })
        .await;
    }
}
