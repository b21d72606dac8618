"""ElasticScheduler (§6.2, Algorithm 2): the device queues, the pool, the split and who serves what.

``transport`` holds the two priority queues (§6.2.2), ``allocation`` the resource reallocation (§6.2.1), ``elastic`` the
process that applies it, ``pool`` what SpecController sees of all this. State lives in Redis; every change of it that
must be atomic is a script in ``lua/``.
"""
