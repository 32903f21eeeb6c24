import torch
from pytest_rlperf import hierarchical_timer


class Rows:
    def sample(self, size):
        return torch.ones(size, 2)


class Agent:
    def __init__(self, own=False):
        self.own = own
        self.actor = torch.nn.Linear(2, 2)
        self.critic = torch.nn.Linear(4, 1)
        self.critic_target = torch.nn.Linear(4, 1)
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=1e-4)
        self.actor_optimizer = torch.optim.SGD(self.actor.parameters(), lr=1e-4)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.alpha_optimizer = torch.optim.SGD([self.log_alpha], lr=1e-4)
        self.buffer = Rows()

    def update(self, batch_size):
        rows = self.buffer.sample(batch_size)
        with torch.no_grad():
            target = self.critic_target(torch.cat((rows, self.actor(rows)), -1))
        loss = (self.critic(torch.cat((rows, rows), -1)) - target - 1).square().mean()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        self.update_actor(rows)
        with torch.no_grad():
            for target, parameter in zip(self.critic_target.parameters(), self.critic.parameters()):
                target.lerp_(parameter, 0.1)

    def update_actor(self, rows):
        if self.own:
            with hierarchical_timer("mine"):
                return self.step_actor(rows)
        return self.step_actor(rows)

    def step_actor(self, rows):
        actions = self.actor(rows)
        self.actor_optimizer.zero_grad()
        (-self.critic(torch.cat((rows, actions), -1)).mean()).backward()
        self.actor_optimizer.step()
        self.alpha_optimizer.zero_grad()
        (-self.log_alpha * actions.detach().mean()).sum().backward()
        self.alpha_optimizer.step()
