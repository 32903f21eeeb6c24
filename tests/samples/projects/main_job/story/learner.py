import numpy as np

MORE = 0


def scan(rewards, values, dones, last_values):
    advantages = np.zeros_like(rewards)
    following, next_values = np.zeros_like(last_values), last_values
    for t in reversed(range(len(rewards))):
        going_on = 1 - dones[t]
        delta = rewards[t] + 0.99 * next_values * going_on - values[t]
        advantages[t] = following = delta + 0.99 * 0.95 * going_on * following
        next_values = values[t]
    return advantages


def gae(rewards, values, dones, last_values):
    for _ in range(MORE):
        scan(rewards, values, dones, last_values)
    return scan(rewards, values, dones, last_values)
