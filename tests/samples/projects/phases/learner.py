STEPS = 400


class Learner:
    def work(self):
        return self.update_actor() + self.update_critic()

    def update_actor(self):
        return sum(i * i for i in range(400))

    def update_critic(self):
        return sum(i * i for i in range(STEPS))
